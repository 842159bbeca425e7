"""What trackers and the log are told of a run's progress."""

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkan_core.tracking.tracker import Progress, Trackers
from dkan_core.training.launcher import reporting
from dkan_core.training.launcher.reporting import Reporter, TimeReader
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.utils.progress import LOG_SECONDS
from tests.training.launcher.made_checkpoints import CONFIG, ROWS, evaluation


class Listener(Trackers):
    """Remembers the progress that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.told.append(progress)


def reporter_of(folder: Path, listener: Listener, *, sync_interval: int = 1, **options: Any) -> Reporter:
    memory = create_memory(MemoryShape(parameters=1, workers=1))
    os.close(memory.handle)
    config = replace(CONFIG, sync_interval=sync_interval)
    schedule = UpdateRules.from_config(config, ROWS, ParameterGroups()).schedule
    return Reporter(folder, schedule, TimeReader(memory, has_server=False), listener, **options)


def told_of(folder: Path, ledgers: Iterable[Ledger]) -> list[Progress]:
    listener = Listener()
    with reporter_of(folder, listener) as reporter:
        for ledger in ledgers:
            reporter.progress(ledger)
    return listener.told


def test_progress_is_told_from_the_step_on_that_has_a_speed(tmp_path: Path) -> None:
    batch: dict[str, Any] = {"loss": 0.5, "weight": 8.0, "rows": 8}
    first = replace(Ledger().with_update(**batch), step=1).with_running_clock()
    second = replace(first.with_update(**batch), step=2)
    resumed = replace(second.with_stopped_clock(), step=3)
    (progress,) = told_of(tmp_path, [first, second, resumed])
    assert progress.step == 2 and progress.loss == 0.5 and progress.rows_per_second > 0
    # The status of a TrainJob holds 32 bits.
    assert 0 <= progress.remaining_seconds < 2**31


def test_log_shows_progress_between_evaluations_at_most_every_half_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting, "on_terminal", lambda: False)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    ledgers = [replace(Ledger().with_update(loss=0.5, weight=8.0, rows=8), step=1).with_running_clock()]
    ledgers += [replace(ledgers[0].with_update(loss=0.5, weight=8.0, rows=8), step=step) for step in range(2, 8)]

    def passing() -> Iterator[Ledger]:
        nonlocal now
        for ledger in ledgers:
            yield ledger
            now += LOG_SECONDS / 2

    with caplog.at_level(logging.INFO, "dkan_core"):
        told_of(tmp_path, passing())
    lines = [each.getMessage() for each in caplog.records]
    assert [line.split("  ")[1] for line in lines] == ["step 3", "step 5", "step 7"]
    assert all(line.startswith("epoch ") and line.endswith("loss 0.5000") for line in lines)


@pytest.mark.parametrize(
    ("steps", "options", "skipped"),
    [
        ([10, 20, 25, 30], {}, None),
        ([50, 60], {"earlier": [evaluation(40)]}, None),
        ([45, 50], {"earlier": [evaluation(10)], "first_step": 45}, None),
        ([60], {"earlier": [evaluation(10)], "first_step": 45}, "1 evaluation skipped"),
        ([10, 40, 50, 90], {}, "2 evaluations skipped"),
        ([20], {}, "1 evaluation skipped"),
        ([20], {"sync_interval": 10}, "1 evaluation skipped"),
        ([20, 40], {"sync_interval": 20}, None),
        ([100], {"shows_scores": False}, None),
    ],
)
def test_evaluations_that_were_skipped_are_warned_of_once(
    steps: list[int],
    options: dict[str, Any],
    skipped: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which of the others is the best then depends on timing. One is due every ten steps."""
    with caplog.at_level("WARNING", "dkan_core"), reporter_of(tmp_path, Listener(), **options) as reporter:
        for step in steps:
            reporter.take({"kind": "evaluation", "saved": True, **evaluation(step)})
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == (skipped is not None) and all(f": {skipped}, so" in line for line in lines)
