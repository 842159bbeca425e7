"""Calls to Linux's ``prctl``: names of processes, processes that end together, adopted orphans.

On other systems these functions do nothing.
"""

import ctypes
import os
import signal
import sys
import threading

# Constants of <linux/prctl.h>.
SET_DEATH_SIGNAL, SET_NAME, SET_SUBREAPER = 1, 15, 36

_lock = threading.Lock()
_adopters = 0


def name_process(name: str) -> None:
    """Set the name of this process in ps and top, of 15 characters."""
    _prctl(SET_NAME, name[:15].encode())


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies; end it now if that has happened already.

    The parent's id shows whether it died before the call; the kernel watches it afterwards.
    """
    _prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL))
    # The parent may have died between the fork and the call above, which then has no effect.
    if sys.platform == "linux" and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent has ended."""
    _count_adopters(1)


def stop_adopting() -> None:
    """Leave orphans to the system again, once every ``adopt_orphans`` has been undone."""
    _count_adopters(-1)


def _count_adopters(change: int) -> None:
    """Set or clear the flag, with a count: the kernel has one per process, and several runs may need it."""
    global _adopters
    with _lock:
        _adopters += change
        _prctl(SET_SUBREAPER, int(_adopters > 0))


def _prctl(option: int, argument: int | bytes) -> None:
    if sys.platform != "linux":
        return
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
