"""Runs that faults are done to, and the undisturbed one beside them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core import TrainConfig, TrainResult, train
from tests.training.processes import Background
from tests.training.runs import CONFIG, STEPS, final_state, write_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="session")
def train_rows(rows: Path) -> int:
    return int(json.loads((rows / "manifest.json").read_text())["splits"]["train"]["rows"])


@pytest.fixture(scope="session")
def calm(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """An undisturbed run."""
    result = train(rows, tmp_path_factory.mktemp("calm") / "run", CONFIG)
    assert result.history[-1]["step"] == STEPS
    return result


@pytest.fixture(scope="session")
def expected(calm: TrainResult) -> npt.NDArray[np.float32]:
    """The last state of the undisturbed run."""
    return final_state(Path(calm.model).parent)


@pytest.fixture
def start(rows: Path, tmp_path: Path) -> Iterator[Callable[..., Background]]:
    """Start runs that are ended with the test."""
    started: list[Background] = []

    def begin(config: TrainConfig = CONFIG, run: str = "run", **env: str) -> Background:
        started.append(Background(rows, tmp_path / run, config, tmp_path / "settings.json", **env))
        return started[-1]

    yield begin
    for background in started:
        background.end()
