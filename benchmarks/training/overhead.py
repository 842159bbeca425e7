"""What evaluating and checkpointing every 100 steps cost the trainer: CPU time per row of launcher, server and workers.

Three runs alternate: one that does neither (its evaluator is stopped; it still gets one snapshot per epoch), one that
evaluates, one that writes checkpoints. The CPU time of the evaluator itself does not count, as it may run elsewhere;
but here it runs in parallel with the workers and shares their caches and memory. Both side jobs are done by launcher
and server alone. Their CPU time varies less than that of the workers, so it is also shown separately.
"""

import math
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.data import DataSet
from benchmarks.training.turns import in_turns, paused
from benchmarks.training.watch import ENDLESS, NEVER, ONE_THREAD
from dkan_core.data.loading.order import steps_per_epoch

NEITHER, EVALUATING, CHECKPOINTING = "neither", "evaluating", "checkpointing"


def measure(
    data: DataSet, scratch: Path, *, batch_size: int = 512, every: int = 100, turns: int = 1, rounds: int = 15
) -> list[dict[str, Any]]:
    """Compare training with evaluation, with checkpoints, and with neither.

    Args:
        data: To train on.
        scratch: For the runs.
        batch_size: Rows of a step.
        every: Steps between two evaluations, or checkpoints.
        turns: Evaluations, or checkpoints, in a turn.
        rounds: Rounds of each run.
    """
    quiet = replace(
        ENDLESS, batch_size=min(batch_size, data.train_rows), checkpoint_steps=NEVER, checkpoint_seconds=0.0
    )
    per_epoch = steps_per_epoch(data.train_rows, quiet.batch_size or 1)
    configs = {
        NEITHER: quiet,
        EVALUATING: replace(quiet, evaluations_per_epoch=math.ceil(per_epoch / every)),
        CHECKPOINTING: replace(quiet, checkpoint_steps=every),
    }
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(paused(data.folder, scratch / name, config, **ONE_THREAD))
            for name, config in configs.items()
        }
        without = (NEITHER, CHECKPOINTING)
        windows = in_turns(runs, steps=turns * every, rounds=rounds, without_evaluator=without)
    rows = []
    for name, found in windows.items():
        ratios = [
            each.cpu / each.rows / (base.cpu / base.rows) for each, base in zip(found, windows[NEITHER], strict=True)
        ]
        beside = [
            (each.beside / each.rows - base.beside / base.rows) / (base.cpu / base.rows)
            for each, base in zip(found, windows[NEITHER], strict=True)
        ]
        rows.append(
            {
                "data": data.name,
                "run": name,
                "batch_size": quiet.batch_size,
                "cpu_us_per_row": statistics.median(1e6 * each.cpu / each.rows for each in found),
                "overhead": statistics.median(ratios) - 1,
                "error": _error(ratios),
                "beside": statistics.median(beside),
                "beside_error": _error(beside),
                "windows": [vars(each) for each in found],
            }
        )
    return rows


def _error(values: list[float]) -> float:
    """Return the standard error of a median, were the values normal."""
    return 1.25 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
