"""Curves for TensorBoard: in the run's folder, and beside checkpoints that lie elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkan_core.tracking.choice import follow_run
from dkan_core.tracking.tracker import RunEnd, TrackedRun
from tests.tracking.conftest import evaluation_at, progress_at
from tests.training.processes import wait_until

pytest.importorskip("tensorboard", reason="needs the tensorboard extra")


def curves(folder: Path | str) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder)).Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture
def follow(tracked_run: TrackedRun) -> Callable[..., None]:
    def follow(look: Callable[[], None] = lambda: None, **change: Any) -> None:
        config = replace(tracked_run.config, tensorboard=True)
        with follow_run(replace(tracked_run, config=config, **change)) as tracker:
            tracker.progress(progress_at(10))
            tracker.evaluation(evaluation_at(20, 0.25))
            look()
            tracker.evaluation(evaluation_at(30, 0.75))
            tracker.finished(RunEnd(status="finished", metrics={}))

    return follow


def test_curves_have_every_evaluation(follow: Callable[..., None], tracked_run: TrackedRun) -> None:
    follow()
    found = curves(tracked_run.folder / "tensorboard")
    assert found["valid/average_precision"] == [(20, 0.25), (30, 0.75)]
    assert found["time/worker-0/compute"][0] == (20, 0.5) and "peak_memory/worker-0" in found
    assert not (tracked_run.folder / "checkpoints").exists()


def test_curves_are_beside_checkpoints_elsewhere_while_the_run_goes_on(
    follow: Callable[..., None], tracked_run: TrackedRun, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    stale = kept / "tensorboard" / "events.out.tfevents.1.host"
    stale.parent.mkdir(parents=True)
    for path in (stale, stale.with_name("notes.txt")):
        path.write_text("")

    def look() -> None:
        wait_until(lambda: len(list(stale.parent.iterdir())) == 2 and not stale.exists())
        assert curves(stale.parent)["valid/average_precision"] == [(20, 0.25)]

    follow(look, checkpoints=str(kept))
    assert curves(stale.parent) == curves(tracked_run.folder / "tensorboard")
    follow(checkpoints=str(kept), is_resumed=True)
    assert len(list(stale.parent.iterdir())) == 3, "a resumed run keeps what the earlier one has shown"


def test_tensorboard_reads_the_curves_in_a_bucket(follow: Callable[..., None], tracked_run: TrackedRun) -> None:
    follow(checkpoints="memory://curves/run")
    assert curves("memory://curves/run/tensorboard") == curves(tracked_run.folder / "tensorboard")
