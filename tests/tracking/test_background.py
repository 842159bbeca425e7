"""Whatever a tracker does, the run goes on: at the speed that it had, and to its end."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dkan_core.tracking import background
from dkan_core.tracking.background import BackgroundTracker, try_within
from dkan_core.tracking.tracker import Progress, RunEnd, TrackedRun, Tracker
from tests.tracking.conftest import evaluation_at, progress_at
from tests.training.processes import wait_until

END = RunEnd(status="finished", metrics={})


class Listener(Tracker):
    """Remembers what it is told; ``trouble`` is called first."""

    flush_seconds = 60.0

    def __init__(self, trouble: Callable[[str], object] = lambda _: None) -> None:
        self.trouble = trouble
        self.told: list[str] = []

    def started(self, run: TrackedRun) -> None:
        self._take("started")

    def progress(self, progress: Progress) -> None:
        self._take(f"progress {progress.step}")

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        self._take(f"evaluation {entry['step']}")

    def finished(self, end: RunEnd) -> None:
        self._take(end.status)

    def _take(self, event: str) -> None:
        self.trouble(event)
        self.told.append(event)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE_SECONDS", 0.001)


def test_evaluations_are_kept_and_of_progress_the_newest(tracked_run: TrackedRun) -> None:
    gate = threading.Event()
    listener = Listener(lambda event: event != "progress 1" or gate.wait())
    tracker = BackgroundTracker(listener, "listener")
    tracker.started(tracked_run)
    tracker.progress(progress_at(1))
    wait_until(lambda: tracker._newest is None)
    for step in range(2, 6):
        tracker.progress(progress_at(step))
        tracker.evaluation(evaluation_at(step))
    gate.set()
    wait_until(lambda: "progress 5" in listener.told)
    tracker.finished(END)
    assert [event for event in listener.told if "progress" in event] == ["progress 1", "progress 5"]
    rest = [event for event in listener.told if "progress" not in event]
    assert rest == ["started", "evaluation 2", "evaluation 3", "evaluation 4", "evaluation 5", "finished"]


def test_server_that_comes_back_gets_everything_and_its_absence_is_one_warning(
    tracked_run: TrackedRun, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([False] * 5 + [True] * 100)

    def trouble(_: str) -> None:
        if not next(answers):
            raise ConnectionError("down for a moment\nand for another one")

    listener = Listener(trouble)
    tracker = BackgroundTracker(listener, "listener")
    tracker.started(tracked_run)
    for step in (1, 2):
        tracker.evaluation(evaluation_at(step))
    wait_until(lambda: len(listener.told) == 3)
    tracker.finished(END)
    assert listener.told == ["started", "evaluation 1", "evaluation 2", "finished"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "listener: an update failed; this run may be incomplete there (training continues): "
        "ConnectionError: down for a moment"
    )


def test_evaluation_that_is_always_refused_does_not_stand_in_the_way(tracked_run: TrackedRun) -> None:
    def trouble(event: str) -> None:
        if event == "evaluation 1":
            raise ValueError("no such metric")

    listener = Listener(trouble)
    tracker = BackgroundTracker(listener, "listener")
    tracker.started(tracked_run)
    for step in (1, 2):
        tracker.evaluation(evaluation_at(step))
    wait_until(lambda: len(listener.told) == 2)
    tracker.finished(END)
    assert listener.told == ["started", "evaluation 2", "finished"]


def test_warning_that_is_cut_shows_no_part_of_a_credential(
    tracked_run: TrackedRun, caplog: pytest.LogCaptureFixture
) -> None:
    def trouble(_: str) -> None:
        raise ConnectionError(f"no answer of https://user:{'secret' * 100}@host/api")

    tracker = BackgroundTracker(Listener(trouble), "listener")
    tracker.started(tracked_run)
    tracker.finished(END)
    try_within(10, lambda: trouble(""), "listener", "the evaluation")
    assert caplog.text.count("https://***@host/api") == 2 and "secret" not in caplog.text


def test_server_that_is_down_at_the_end_is_asked_once_more(tracked_run: TrackedRun) -> None:
    attempts = []

    def trouble(event: str) -> None:
        attempts.append(event)
        raise ConnectionError("down")

    tracker = BackgroundTracker(Listener(trouble), "listener")
    tracker.started(tracked_run)
    tracker.evaluation(evaluation_at(1))
    wait_until(lambda: len(attempts) > 3)
    before = len(attempts)
    tracker.finished(END)
    assert set(attempts) == {"started"} and not tracker._thread.is_alive()
    # One that was under way when these were counted, and the last.
    assert len(attempts) - before <= 2


def test_request_that_fails_after_the_end_is_the_last(tracked_run: TrackedRun) -> None:
    attempts = []
    closing = threading.Event()

    def trouble(event: str) -> None:
        attempts.append(event)
        closing.wait()
        raise TimeoutError("no answer")

    tracker = BackgroundTracker(Listener(trouble), "listener")
    tracker.started(tracked_run)
    wait_until(lambda: len(attempts) == 1)

    def fail_later() -> None:
        wait_until(lambda: tracker._is_closing)
        closing.set()

    threading.Thread(target=fail_later).start()
    tracker.finished(END)
    assert attempts == ["started"]


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_server_that_hangs_is_left_after_a_while(
    tracked_run: TrackedRun, status: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    listener = Listener(lambda event: event == "started" or gate.wait())
    listener.flush_seconds = 0.2 if status == "finished" else 10_000.0
    monkeypatch.setitem(background.LAST_SECONDS, "stopped", 0.1)
    tracker = BackgroundTracker(listener, "listener")
    tracker.started(tracked_run)
    tracker.evaluation(evaluation_at(1))
    tracker.finished(RunEnd(status=status))
    assert not gate.is_set() and listener.told == ["started"] and tracker._thread.daemon
    assert f"not done within {0.2 if status == 'finished' else 0.1} s" in caplog.text
    gate.set()


def test_what_waits_is_bounded_and_the_start_stays(tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    gate = threading.Event()
    listener = Listener(lambda _: gate.wait())
    tracker = BackgroundTracker(listener, "listener")
    tracker.started(tracked_run)
    for step in range(10):
        tracker.evaluation(evaluation_at(step))
    gate.set()
    tracker.finished(END)
    assert listener.told == ["started", "evaluation 8", "evaluation 9", "finished"]
