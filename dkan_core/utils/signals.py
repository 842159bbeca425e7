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


def exit_once(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise SystemExit, so that the process cleans up, and let no second signal keep it from that.

    So a stopped pod unwinds: children are ended, staged files removed, the logs of a remote run uploaded.
    """
    # An impatient second signal would end the process in the middle of its clean-up.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
