"""What signals do: end a process in order, or hold for a block of code and then be as before."""

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
    """Handle a signal while the block runs; afterwards it is handled as before.

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
    """Hold a signal back while the block runs; yield a function at whose calls it is handled if it has come.

    An exception that a handler raises may come up between any two instructions, such as when a thread is half started.
    The signal is handled at the end of the block at the latest, by the handler of before. One that Python does not
    handle is not held, nor is any in another thread than the main one.
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
        # A handler that has raised may have set another one.
        if signal.getsignal(number) is hold:
            signal.signal(number, before)
            if came:
                before(number, came[-1])


def exit_on_hangup() -> None:
    """Handle SIGHUP, as of a closed terminal, as SIGTERM is handled; where nohup has it ignored, it stays so."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def exit_once(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise SystemExit, so that the process cleans up, and let no second signal keep it from that.

    So a stopped pod unwinds: children are ended, staged files removed, the logs of a remote run uploaded.
    """
    # An impatient second signal would end the process in the middle of its clean-up.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
