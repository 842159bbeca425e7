"""A run in a pod of a TrainJob posts its progress, and does as well without a server that takes it."""

import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dkan_core import TrainResult, train
from dkan_core.tracking import trainjob
from dkan_core.tracking.choice import follow_run
from dkan_core.tracking.tracker import RunEnd, TrackedRun
from tests.tracking.conftest import CONFIG, evaluation_at, progress_at
from tests.tracking.status_server import StatusServer
from tests.training.processes import wait_until

END = RunEnd(status="finished", metrics={"average_precision": 0.875})


def metrics_of(post: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in post["metrics"]}


def model_of(result: TrainResult) -> bytes:
    return (Path(result.model) / "model.safetensors").read_bytes()


def test_run_posts_from_its_start_to_its_end(
    status: StatusServer, prepared: Path, trained: TrainResult, tmp_path: Path
) -> None:
    result = train(prepared, tmp_path / "run", CONFIG)
    first, last = status.posts[0], status.posts[-1]
    assert first["progressPercentage"] == 0 and metrics_of(first) == {"step": "0"}
    assert last["progressPercentage"] == 100 and last["estimatedRemainingSeconds"] == 0
    found = metrics_of(last)
    assert found["average_precision"] == f"{result.history[-1]['average_precision']:.6g}"
    assert found["best_average_precision"] == f"{result.average_precision:.6g}"
    assert found["step"] == str(result.history[-1]["step"]) and found["epoch"] == "8"
    assert {"loss", "rows_per_second"} <= found.keys()
    assert model_of(result) == model_of(trained)


def test_resumed_run_begins_where_it_was(status: StatusServer, prepared: Path, tmp_path: Path) -> None:
    train(prepared, tmp_path / "run", replace(CONFIG, epochs=2))
    posts = len(status.posts)
    train(prepared, tmp_path / "run", replace(CONFIG, epochs=4, resume="auto"))
    again = status.posts[posts:]
    assert again[0]["progressPercentage"] == 50 and again[-1]["progressPercentage"] == 100


@pytest.mark.parametrize("trouble", ["hang", "refused"])
def test_model_is_the_same_whatever_the_server_does(
    trouble: str,
    status: StatusServer,
    prepared: Path,
    trained: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(trainjob, "TIMEOUT_SECONDS", 0.5)
    if trouble == "hang":
        status.trouble = trouble
    else:
        status.accepted = "another"
    result = train(prepared, tmp_path / "run", CONFIG)
    assert model_of(result) == model_of(trained) and not status.released.is_set()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the TrainJob's status: an update failed; this run may be incomplete there" in warnings[0]
    assert ("401" if trouble == "refused" else "time") in warnings[0] and not status.posts


@pytest.mark.parametrize("trouble", ["nonsense", "redirect", "down", "plain http", "no token", "no certificate"])
def test_run_ends_whatever_the_server_answers(
    trouble: str,
    status: StatusServer,
    tracked_run: TrackedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    status.trouble = trouble
    if trouble == "down":
        with socket.create_server(("127.0.0.1", 0)) as free:
            monkeypatch.setenv(trainjob.URL, f"https://127.0.0.1:{free.getsockname()[1]}/status")
    elif trouble == "plain http":
        monkeypatch.setenv(trainjob.URL, "http://127.0.0.1:1/status")
    elif trouble == "no token":
        status.token.unlink()
    elif trouble == "no certificate":
        monkeypatch.setenv(trainjob.CA_CERTIFICATE, str(tmp_path / "none.pem"))
    with follow_run(tracked_run) as tracker:
        tracker.progress(progress_at(1))
        tracker.evaluation(evaluation_at(2))
        tracker.finished(END)
    assert not status.posts and len(caplog.records) == 1
    # The token is for the server at the address alone.
    assert all(path.endswith("/status") for path in status.paths)
    assert bool(status.paths) == (trouble in ("nonsense", "redirect"))


def test_token_is_read_anew_for_each_post(status: StatusServer, tracked_run: TrackedRun) -> None:
    with follow_run(tracked_run) as tracker:
        wait_until(lambda: len(status.posts) == 1)
        status.accepted = "second"
        status.token.write_text("second")
        tracker.finished(END)
    assert len(status.posts) == 2


def test_progress_is_posted_at_intervals_and_the_end_at_once(
    status: StatusServer, tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob.TrainJobTracker, "progress_seconds", 10_000.0)
    with follow_run(tracked_run) as tracker:
        tracker.progress(progress_at(50))
        wait_until(lambda: len(status.posts) == 2)
        tracker.progress(progress_at(100))
        tracker.evaluation(evaluation_at(100))
        tracker.finished(END)
    assert [post["progressPercentage"] for post in status.posts] == [0, 25, 100]
    assert status.posts[1]["estimatedRemainingSeconds"] == 150
    assert metrics_of(status.posts[-1])["best_average_precision"] == "0.875", "that of the model, which may be a blend"


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt(), ValueError("a bug")])
def test_run_that_does_not_end_in_order_is_not_shown_as_done(
    error: BaseException, status: StatusServer, tracked_run: TrackedRun
) -> None:
    def fail() -> None:
        with follow_run(tracked_run) as tracker:
            tracker.evaluation(evaluation_at(100))
            raise error

    with pytest.raises(type(error)):
        fail()
    assert [post["progressPercentage"] for post in status.posts] == [0, 0]
    assert metrics_of(status.posts[-1])["step"] == "100"
