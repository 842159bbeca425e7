"""Wake-ups between processes: shared memory holds the data, and a notification only says "look there".

So a notification that is lost with the process that received it, or one too many, does no harm.
"""

import os
import select
from contextlib import suppress


class Wakeup:
    """One process waits for it, others notify it.

    Args:
        handles: File descriptors of a pipe, read end first: from ``handles`` of another one, or inherited.
    """

    def __init__(self, handles: tuple[int, int] | None = None) -> None:
        self.handles = handles or os.pipe()
        for handle in self.handles:
            # A full pipe must not block who notifies, nor an empty one who was woken for nothing.
            os.set_blocking(handle, False)
        self._poll = select.poll()
        self._poll.register(self.handles[0], select.POLLIN)

    def notify(self) -> None:
        """Wake the process that waits; where the pipe is full of notifications already, do nothing."""
        with suppress(BlockingIOError):
            os.write(self.handles[1], b"\0")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a notification, at most ``seconds``; return whether there was one."""
        if not self._poll.poll(None if seconds is None else 1000 * seconds):
            return False
        with suppress(BlockingIOError):
            os.read(self.handles[0], 1 << 16)
        return True

    def close(self) -> None:
        """Close this process's descriptors."""
        for handle in self.handles:
            os.close(handle)
