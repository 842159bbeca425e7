"""What a second worker costs: rows per CPU second of two workers compared with one, one thread per worker.

Both runs are started first and then alternate, without evaluation, so that only steps count: the CPU time of launcher,
server and workers.
"""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.data import DataSet
from benchmarks.training.turns import in_turns, paused
from benchmarks.training.watch import ENDLESS, NEVER, ONE_THREAD


def measure(
    data: DataSet, scratch: Path, *, batch_size: int = 4096, steps: int = 20, rounds: int = 15
) -> list[dict[str, Any]]:
    """Compare one and two workers.

    Args:
        data: To train on.
        scratch: For the runs.
        batch_size: Rows of a step.
        steps: Of a turn.
        rounds: Rounds of each run.
    """
    config = replace(
        ENDLESS, batch_size=min(batch_size, data.train_rows), checkpoint_steps=NEVER, checkpoint_seconds=0.0
    )
    with (
        paused(data.folder, scratch / "one", config, **ONE_THREAD) as one,
        paused(data.folder, scratch / "two", replace(config, workers=2), **ONE_THREAD) as two,
    ):
        runs = {"1": one, "2": two}
        windows = in_turns(runs, steps=steps, rounds=rounds, without_evaluator=tuple(runs))
    return [
        {
            "data": data.name,
            "workers": int(name),
            "batch_size": config.batch_size,
            "rows_per_cpu_second": statistics.median(each.rows / each.cpu for each in found),
            "efficiency": statistics.median(
                each.rows / each.cpu / (base.rows / base.cpu) for each, base in zip(found, windows["1"], strict=True)
            ),
            "rows_per_second": statistics.median(each.rows / each.seconds for each in found),
            "speedup": statistics.median(
                each.rows / each.seconds / (base.rows / base.seconds)
                for each, base in zip(found, windows["1"], strict=True)
            ),
            "windows": [vars(each) for each in found],
        }
        for name, found in windows.items()
    ]
