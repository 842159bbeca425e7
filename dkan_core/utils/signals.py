"""Signal handling: end a process in order, or change a handler for a block of code only."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def handle_signal(
    number: signal.Signals, handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """Handle a signal while the block runs; restore the previous handler afterwards.

    Only the main thread may set handlers: in another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def hold_signal(number: signal.Signals) -> Iterator[Callable[[], None]]:
    """Hold a signal back while the block runs; yield a function that handles it if it has arrived.

    An exception from a handler may be raised between any two instructions, such as when a thread is half started. At
    the end of the block at the latest, the previous handler gets the signal. Signals that Python does not handle are
    not held, nor are any in other threads than the main one.
    """
    before = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    came: list[FrameType | None] = []

    def hold(_: int, frame: FrameType | None) -> None:
        came.append(frame)

    def deliver() -> None:
        if came:
            frame = came.pop()
            came.clear()
            signal.signal(number, before)
            before(number, frame)
            signal.signal(number, hold)

    signal.signal(number, hold)
    try:
        yield deliver
    finally:
        # The handler may have raised after setting another one.
        if signal.getsignal(number) is hold:
            signal.signal(number, before)
            if came:
                before(number, came[-1])


def exit_on_hangup() -> None:
    """Handle SIGHUP, as from a closed terminal, like SIGTERM, unless nohup has it ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def exit_once(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise SystemExit, so that the process cleans up, and ignore further signals meanwhile.

    So in a stopped pod children are ended, staged files removed, and the logs of a remote run uploaded.
    """
    # An impatient second signal would end the process in the middle of its clean-up.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def disarm_signals() -> None:
    """Keep handlers from raising once the work of this process is done: Python would print that with a traceback.

    Its exit code stays what it is at SIGTERM. Ctrl-C ends it at once, as it may be waiting for a thread.
    """
    if signal.getsignal(signal.SIGTERM) is exit_once:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
