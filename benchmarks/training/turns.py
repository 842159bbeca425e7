"""Runs that train alternately: while one trains, the processes of the others are stopped."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training.watch import LAUNCHER, Watched, cpu_seconds
from dkan_core import TrainConfig

EVALUATOR = "evaluator"
LEAD_STEPS = 3
"""Done after a pause before a window begins."""

WAKING_SECONDS = 0.05
"""Workers have this long to count a heartbeat before the others look."""


@dataclass(frozen=True)
class Window:
    """A stretch of a run."""

    steps: int
    rows: int
    seconds: float
    cpu: float
    """Seconds of the launcher, the server and the workers."""

    beside: float
    """Those of the launcher and the server alone."""


@contextmanager
def paused(prepared: Path, folder: Path, config: TrainConfig, **env: str) -> Iterator[Watched]:
    """Yield a run that has begun and waits for its turn."""
    with Watched(prepared, folder, config, **env) as run:
        run.wait_for_step(LEAD_STEPS)
        pause(run)
        yield run


def in_turns(
    runs: dict[str, Watched], *, steps: int, rounds: int, without_evaluator: Sequence[str] = ()
) -> dict[str, list[Window]]:
    """Return windows of so many steps of each run, one a round; another round before these is not counted.

    Args:
        runs: Paused runs, by name.
        steps: Of a window.
        rounds: Windows of each run.
        without_evaluator: Runs whose evaluator stays stopped.
    """
    windows: dict[str, list[Window]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            resume(run, evaluator=name not in without_evaluator)
            window = measure_window(run, steps)
            pause(run)
            if turn:
                windows[name].append(window)
    return windows


def pause(run: Watched) -> None:
    """Stop every process of a run."""
    run.signal(signal.SIGSTOP)


def resume(run: Watched, *, evaluator: bool = True) -> None:
    """Continue a run; those who watch for unresponsive workers wake up last."""
    names = run.processes()
    workers = [name for name in names if name.startswith("worker")]
    run.signal(signal.SIGCONT, workers)
    time.sleep(WAKING_SECONDS)
    run.signal(signal.SIGCONT, [name for name in names if name not in workers and (evaluator or name != EVALUATOR)])


def measure_window(run: Watched, steps: int) -> Window:
    """Watch a run for so many steps."""
    run.wait_for_step(run.ledger().step + LEAD_STEPS)
    processes = run.processes()
    beside = [processes[name] for name in (LAUNCHER, "server")]
    workers = [number for name, number in processes.items() if name.startswith("worker")]
    before, started = run.ledger(), time.perf_counter()
    begun = [cpu_seconds(group) for group in (beside, workers)]
    run.wait_for_step(before.step + steps)
    after, seconds = run.ledger(), time.perf_counter() - started
    used = [cpu_seconds(group) - start for group, start in zip((beside, workers), begun, strict=True)]
    return Window(after.step - before.step, after.rows - before.rows, seconds, sum(used), used[0])
