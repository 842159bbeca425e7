"""Wake-ups between processes. What there is to say stands in shared memory; a ring only says: look there.

So a ring that is lost with the process that heard it, or one too many, does no harm.
"""

import os
import select
from contextlib import suppress


class Doorbell:
    """One process waits at it, others ring it.

    Args:
        handles: File descriptors of a pipe, read end first: from ``handles`` of another one, or inherited.
    """

    def __init__(self, handles: tuple[int, int] | None = None) -> None:
        self.handles = handles or os.pipe()
        for handle in self.handles:
            os.set_blocking(handle, False)
        self._poll = select.poll()
        self._poll.register(self.handles[0], select.POLLIN)

    def ring(self) -> None:
        """Wake the process that waits; when it has been rung often enough, do nothing."""
        with suppress(BlockingIOError):
            os.write(self.handles[1], b"\0")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a ring, at most ``seconds``; tell whether there was one."""
        if not self._poll.poll(None if seconds is None else 1000 * seconds):
            return False
        with suppress(BlockingIOError):
            os.read(self.handles[0], 1 << 16)
        return True

    def close(self) -> None:
        """Close this process's descriptors."""
        for handle in self.handles:
            os.close(handle)
