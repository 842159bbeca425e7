"""What runs are told of, without a run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkan_core import TrainConfig
from dkan_core.tracking.mlflow.sweep import VARIABLE
from dkan_core.tracking.tracker import Progress, TrackedRun
from dkan_core.training.setup.defaults import resolve
from tests.tracking.status_server import StatusServer, serve_status

# As the fixture ``trained``.
CONFIG = TrainConfig(blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02)


@pytest.fixture(scope="module")
def variables() -> Iterator[pytest.MonkeyPatch]:
    """What a user may have set is not there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MLFLOW_")] + [VARIABLE]:
            patch.delenv(name, raising=False)
        yield patch


@pytest.fixture
def status(tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusServer]:
    """The status server of a TrainJob, and the environment of its pods."""
    with serve_status(tmp_path, certificate, monkeypatch) as server:
        yield server


@pytest.fixture
def tracked_run(tmp_path: Path) -> TrackedRun:
    config = resolve(TrainConfig(epochs=2, device="cpu"), rows=1000)
    folder = tmp_path / "run"
    folder.mkdir()
    return TrackedRun(
        name=str(folder), folder=folder, checkpoints=f"{folder}/checkpoints", config=config, data="0" * 64, steps=200
    )


def progress_at(step: int) -> Progress:
    return Progress(
        step=step,
        epoch=step / 100,
        loss=0.5,
        rows_per_second=1000.0,
        percentage=step // 2,
        remaining_seconds=200 - step,
    )


def evaluation_at(step: int, average_precision: float = 0.75) -> dict[str, Any]:
    spent = {"seconds": 1.0, "feed": 0.1, "compute": 0.5, "exchange": 0.1, "wait": 0.1, "other": 0.2, "peak_memory": 1}
    return {
        "epoch": step / 100,
        "step": step,
        "seconds": 1.0,
        "loss": 0.4,
        "rows_per_second": 1000.0,
        "average_precision": average_precision,
        "best_average_precision": average_precision,
        "best": True,
        "time": {"seconds": 1.0, "workers": [spent]},
    }
