"""A tracker in its own thread: a server that fails, hangs or answers nonsense neither ends nor slows a run."""

import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dkan_core.errors import redact
from dkan_core.tracking.tracker import Progress, RunEnd, TrackedRun, Tracker
from dkan_core.utils.messages import first_line

# Evaluations to keep while a server does not answer: a day of one every ten seconds. The oldest are dropped first.
MAX_WAITING = 8640

# Pause before the next attempt; doubled after each failure. A restarted server is back within a minute.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0

# Attempts per evaluation before the next one is sent: over two minutes.
ATTEMPTS = 8

# Longest wait at the end of a run that did not end in order: Kubernetes kills a pod 30 s after telling it to stop.
LAST_SECONDS = {"failed": 10.0, "stopped": 5.0}

# Characters of a server's error to show in a warning.
MAX_REASON = 200

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a tracker, and how often to try it."""

    tell: Callable[[], None]
    attempts: int


def try_within(seconds: float, call: Callable[[], None], name: str, what: str) -> None:
    """Call a function once in a thread; an exception or a time-out becomes a warning.

    Args:
        seconds: How long to wait.
        call: The function.
        name: The server's name in messages.
        what: What is logged.
    """
    errors: list[str] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # a client library may raise anything
            errors.append(_reason(error))

    thread = threading.Thread(target=work, name=f"dkan-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        errors.append(f"not done within {seconds:g} s")
    for error in errors[:1]:
        logger.warning("%s: %s was not logged (%s)", name, what, error)


def _reason(error: Exception) -> str:
    """Return an error in one line, as a client lists every attempt on a server that does not answer."""
    # Redacted before it is cut, as half a credential would not be recognized.
    line = redact(f"{type(error).__name__}: {first_line(error)}")
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]}…"


class BackgroundTracker(Tracker):
    """Forwards everything to another tracker, in a thread: all evaluations in order, but only the newest progress.

    Args:
        tracker: Does the work. It may raise anything, and needs a time-out for all that it waits for.
        name: What messages call it.
    """

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker = tracker
        self._name = name
        self._waiting: deque[_Call] = deque()
        self._newest: Progress | None = None
        self._progress_due = 0.0
        self._is_closing = False
        self._has_given_up = False
        self._has_warned = False
        self._changed = threading.Condition()
        # A daemon thread, so that a hanging call does not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"dkan-{name}", daemon=True)

    def started(self, run: TrackedRun) -> None:
        # Retried until the run ends, as later calls need the run that this one creates.
        self._put(_Call(partial(self._tracker.started, run), sys.maxsize))
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        with self._changed:
            self._newest = progress
            self._changed.notify()

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        self._put(_Call(partial(self._tracker.evaluation, entry), ATTEMPTS))

    def finished(self, end: RunEnd) -> None:
        """Forward the end, and wait until everything is sent, at most the tracker's ``flush_seconds``.

        Calls that fail from now on are not tried again.
        """
        if self._is_closing:
            return  # called again after Ctrl-C during the wait
        with self._changed:
            self._is_closing = True
        self._put(_Call(partial(self._tracker.finished, end), 1))
        limit = min(self._tracker.flush_seconds, LAST_SECONDS.get(end.status, math.inf))
        self._thread.join(limit)
        if self._thread.is_alive():
            self._warn(f"not done within {limit:g} s")

    def _put(self, call: _Call) -> None:
        with self._changed:
            if len(self._waiting) > MAX_WAITING:
                del self._waiting[1]  # the first one may be in progress
            self._waiting.append(call)
            self._changed.notify()

    def _work(self) -> None:
        while not self._has_given_up and (call := self._next_call()) is not None:
            self._attempt(call)
            with self._changed:
                if self._waiting and self._waiting[0] is call and not self._has_given_up:
                    self._waiting.popleft()

    def _next_call(self) -> _Call | None:
        """Wait for the next call; None when there will be no more."""
        with self._changed:
            while True:
                if self._waiting:
                    return self._waiting[0]
                if self._is_closing:
                    return None
                pause = self._progress_due - time.monotonic()
                if self._newest is not None and pause <= 0:
                    call = _Call(partial(self._tracker.progress, self._newest), 1)
                    self._newest = None
                    self._progress_due = time.monotonic() + self._tracker.progress_seconds
                    return call
                self._changed.wait(pause if self._newest is not None else None)

    def _attempt(self, call: _Call) -> None:
        """Call the tracker, and retry on failure; after the run has ended, a failure is final."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(call.attempts):
            try:
                call.tell()
                return
            # Any exception: an odd answer that confuses a client library must not end the training.
            except Exception as error:
                self._warn(_reason(error))
            with self._changed:
                if self._is_closing:
                    self._has_given_up = True
                    return
                self._changed.wait_for(lambda: self._is_closing, pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _warn(self, why: str) -> None:
        """Warn once that something goes wrong."""
        if not self._has_warned:
            text = "%s: an update failed; this run may be incomplete there (training continues): %s"
            logger.warning(text, self._name, why)
        self._has_warned = True
