"""A tracker in a thread of its own: a server that fails, hangs or answers nonsense neither ends a run nor slows it."""

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
from dkan_core.utils.hints import first_line

# Evaluations that wait for a server that does not answer: a day of one every ten seconds. The oldest go first.
MAX_WAITING = 8640

# Between two attempts; doubled after each failure. A server that is restarted is back within a minute.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0

# How often a server may refuse one evaluation before the next has its turn: over two minutes.
ATTEMPTS = 8

# How long a run that did not end in order waits at most: Kubernetes kills a pod 30 s after it told it to stop.
LAST_SECONDS = {"failed": 10.0, "stopped": 5.0}

# Characters of a server's error that a warning has.
MAX_REASON = 200

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a tracker, and how often it is tried."""

    tell: Callable[[], None]
    attempts: int


def try_within(seconds: float, call: Callable[[], None], name: str, what: str) -> None:
    """Call something in a thread, once; what it raises, or that it takes longer, is a warning.

    Args:
        seconds: How long it is waited for.
        call: Does it.
        name: What messages call the one that it is logged to.
        what: What is logged.
    """
    errors: list[str] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # as of a tracker
            errors.append(_reason(error))

    thread = threading.Thread(target=work, name=f"dkan-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        errors.append(f"not done within {seconds:g} s")
    for error in errors[:1]:
        logger.warning("%s: %s was not logged (%s)", name, what, error)


def _reason(error: Exception) -> str:
    """Return an error in one line: of a server that does not answer, a client tells every attempt."""
    # Before it is cut: half a credential is not known as one.
    line = redact(f"{type(error).__name__}: {first_line(error)}")
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]}…"


class BackgroundTracker(Tracker):
    """Hands everything to another tracker, in a thread: evaluations in order, and of progress only the newest.

    Args:
        tracker: Does the work; it may raise anything, and has a time-out for whatever it waits for.
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
        # A daemon: a call that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"dkan-{name}", daemon=True)

    def started(self, run: TrackedRun) -> None:
        # Without it there is nothing to add to: it is tried until the run ends.
        self._put(_Call(partial(self._tracker.started, run), sys.maxsize))
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        with self._changed:
            self._newest = progress
            self._changed.notify()

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        self._put(_Call(partial(self._tracker.evaluation, entry), ATTEMPTS))

    def finished(self, end: RunEnd) -> None:
        """Hand over the end, and wait until all is told, but no longer than the tracker's ``flush_seconds``.

        What fails from now on is not tried again.
        """
        if self._is_closing:
            return  # somebody has pressed Ctrl-C while this waited
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
                del self._waiting[1]  # the first one may be under way
            self._waiting.append(call)
            self._changed.notify()

    def _work(self) -> None:
        while not self._has_given_up and (call := self._next_call()) is not None:
            self._attempt(call)
            with self._changed:
                if self._waiting and self._waiting[0] is call and not self._has_given_up:
                    self._waiting.popleft()

    def _next_call(self) -> _Call | None:
        """Wait for something to do; None when there will be nothing any more."""
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
        """Call the tracker, and try again where that fails; a failure after the run has ended is final."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(call.attempts):
            try:
                call.tell()
                return
            # Anything: what a client library makes of an odd answer is not to end the training.
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
