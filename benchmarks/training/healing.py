"""How long a fault stops training, and what it loses: dkan compared with plain DDP under torchrun.

The pause of a fault is the longest time between two updates, from shortly before the fault until training is steady
again. torchrun restarts from a checkpoint and repeats steps, so only a step beyond all those before the fault counts as
progress.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.data import DataSet
from benchmarks.training.elastic import Elastic
from benchmarks.training.watch import ENDLESS, Watched
from dkan_core.training.state.ledger import Ledger, add_to_digest

NO_FAULT = "none"
FAULTS: dict[str, tuple[str, signal.Signals] | None] = {
    NO_FAULT: None,
    "worker killed": ("worker-1", signal.SIGKILL),
    "server killed": ("server", signal.SIGKILL),
    "evaluator killed": ("evaluator", signal.SIGKILL),
    "worker stopped": ("worker-1", signal.SIGSTOP),
}
TORCHRUN_FAULTS = {name: FAULTS[name] for name in (NO_FAULT, "worker killed", "worker stopped")}

SETTLE_STEPS, STEADY_STEPS = 20, 20
POLL_SECONDS = 0.001
QUIET_SECONDS = 2.0
"""How long to watch at least: a stopped worker is noticed after one."""

Row = dict[str, Any]


def measure(
    data: DataSet, scratch: Path, *, batch_size: int = 1024, repeats: int = 3, every: int = 100, limit: float = 60.0
) -> list[Row]:
    """Measure each fault so many times, in turns.

    Args:
        data: To train on.
        scratch: For the runs.
        batch_size: Rows of a step, over two workers.
        repeats: Of each fault.
        every: Steps between two checkpoints, in both.
        limit: Seconds after which a run that makes no progress is given up.
    """
    config = replace(ENDLESS, workers=2, batch_size=min(batch_size, data.train_rows), checkpoint_steps=every)
    found: dict[tuple[str, str], list[Row]] = {}
    with Watched(data.folder, scratch / "dkan", config) as run:
        for _ in range(repeats):
            for name, fault in FAULTS.items():
                found.setdefault(("dkan", name), []).append(_fault(run, fault, limit))
    for turn in range(repeats):
        for name, fault in TORCHRUN_FAULTS.items():
            with Elastic(data.folder, scratch / f"torchrun-{turn}-{name}", config, every=every) as run_of_torch:
                found.setdefault(("torchrun and DDP", name), []).append(_torchrun_fault(run_of_torch, fault, limit))
    return [_row(data, config.batch_size or 1, who, name, every, rows) for (who, name), rows in found.items()]


def _row(data: DataSet, batch_size: int, who: str, fault: str, every: int, found: list[Row]) -> Row:
    pauses = sorted(each["pause"] for each in found)
    return {
        "data": data.name,
        "trainer": who,
        "fault": fault,
        "pause": pauses[len(pauses) // 2],
        "longest": pauses[-1],
        "healed": f"{sum(each['healed'] for each in found)} of {len(found)}",
        "rows_again": max(each["rows_again"] for each in found),
        "batch_size": batch_size,
        "checkpoint_steps": every,
        "repeats": found,
    }


def _fault(run: Watched, fault: tuple[str, signal.Signals] | None, limit: float) -> Row:
    """Do something to a run that is well; watch until it is well again."""
    run.wait_for_step(run.ledger().step + SETTLE_STEPS)
    victims = run.processes()
    if fault is not None:
        os.kill(victims[fault[0]], fault[1])
    pause = _longest_pause(lambda: run.ledger().step, limit)
    if fault is not None and fault[1] == signal.SIGSTOP:
        os.kill(victims[fault[0]], signal.SIGCONT)
    if fault is not None and fault[1] == signal.SIGKILL:
        run.wait_until(lambda: run.processes().get(fault[0], victims[fault[0]]) != victims[fault[0]], limit)
    ledger = run.ledger()
    return {"pause": pause, "healed": pause < limit and _is_complete(ledger), "rows_again": 0}


def _is_complete(ledger: Ledger) -> bool:
    """Return whether every work unit up to now was taken once."""
    return ledger.digest == add_to_digest(0, range(ledger.units_done))


def _longest_pause(step: Callable[[], int], limit: float) -> float:
    """Return the longest time between two updates, from now until there were many; at most ``limit``."""
    begun = changed = time.monotonic()
    first = last = step()
    longest = 0.0
    while last < first + STEADY_STEPS or time.monotonic() < begun + QUIET_SECONDS:
        now, current = time.monotonic(), step()
        longest = max(longest, now - changed)
        if longest > limit:
            return limit
        if current != last:
            changed, last = now, current
        time.sleep(POLL_SECONDS)
    return longest


def _torchrun_fault(run: Elastic, fault: tuple[str, signal.Signals] | None, limit: float) -> Row:
    """Do something to a torchrun job between two checkpoints; watch until it is further than before."""
    run.wait_for_step(run.every + run.every // 2)
    if fault is None:
        return {"pause": _longest_pause(run.step, limit), "healed": True, "rows_again": 0}
    reached, begun = run.step(), time.monotonic()
    os.kill(run.workers()[1], fault[1])
    # Of a worker that is killed in the middle of a step, that step may still be done.
    further = reached + 2
    while run.step() < further and time.monotonic() < begun + limit:
        time.sleep(POLL_SECONDS)
    pause = min(limit, time.monotonic() - begun)
    again = max(0, reached - run.restarted_at()) * run.batch_size if pause < limit else 0
    return {"pause": pause, "healed": pause < limit, "rows_again": again}
