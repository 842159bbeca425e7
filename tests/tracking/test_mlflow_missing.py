"""MLflow whose server does not answer, is not named, or whose package is not installed."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkan_core import ConfigError, TrainConfig, TrainResult, evaluate, train
from dkan_core.tracking.choice import follow_run
from dkan_core.tracking.mlflow import client as client_module
from dkan_core.tracking.tracker import RunEnd, TrackedRun
from dkan_core.training.setup.defaults import resolve
from tests.tracking.conftest import CONFIG

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("variables")]


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_model_is_the_same_without_an_answer(
    mute: str,
    prepared: Path,
    trained: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mute)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    result = train(prepared, tmp_path / "run", CONFIG)
    same = [(Path(each.model) / "model.safetensors").read_bytes() for each in (result, trained)]
    assert same[0] == same[1] and not (tmp_path / "run" / "mlflow.json").exists()
    evaluate(result.model, prepared, tmp_path / "eval", explain=False)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2, warnings
    assert f"MLflow at {mute}: an update failed; this run may be incomplete there" in warnings[0]
    assert "\n" not in warnings[0]
    assert "MLflow: the evaluation was not logged" in warnings[1] and (tmp_path / "eval" / "report.html").exists()


def test_mlflow_by_name_needs_a_server_and_the_package(
    monkeypatch: pytest.MonkeyPatch, tracked_run: TrackedRun
) -> None:
    config = TrainConfig(tracking="mlflow", device="cpu")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="tracking mlflow: MLFLOW_TRACKING_URI is not set"):
        resolve(config, rows=100)
    with follow_run(tracked_run) as tracker:
        tracker.finished(RunEnd(status="finished"))
    assert not (tracked_run.folder / "mlflow.json").exists()
    monkeypatch.setattr(client_module, "_is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"tracking mlflow: mlflow is not installed; .*\.\[mlflow\]"):
        resolve(config, rows=100)


@pytest.mark.parametrize("tracking", ["auto", "none"])
def test_mlflow_without_the_package_is_a_warning_where_its_server_is_named(
    tracking: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setattr(client_module, "_is_installed", lambda: False)
    assert not client_module.is_mlflow_wanted(tracking)
    assert len(caplog.records) == (tracking == "auto")
