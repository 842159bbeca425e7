"""Wake-ups between processes: shared memory holds the data, and a notification only says "look there".

So a lost notification, for example if its receiver has died, or an extra one does no harm.
"""

import os
import select
from contextlib import suppress


class Wakeup:
    """One process waits for it, and others notify it.

    Args:
        handles: File descriptors of a pipe, read end first: inherited, or ``handles`` of another wake-up.
    """

    def __init__(self, handles: tuple[int, int] | None = None) -> None:
        self.handles = handles or os.pipe()
        for handle in self.handles:
            # Neither may a full pipe block the notifier, nor an empty one a process that was woken without need.
            os.set_blocking(handle, False)
        self._poll = select.poll()
        self._poll.register(self.handles[0], select.POLLIN)

    def notify(self) -> None:
        """Wake the waiting process; if the pipe is already full of notifications, do nothing."""
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
