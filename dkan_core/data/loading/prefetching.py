"""Batches read ahead by a thread, into buffers that are used again once they have been handed back."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

from dkan_core.utils.arrays import Arrays

# One batch is ready while the next is read. More would take memory without hiding a disk that is too slow.
PREFETCH = 2


class RingClosedError(Exception):
    """Buffers are no longer handed back."""


class BatchRing:
    """Buffers of batches, filled by one thread and used by another, in the same order.

    A buffer is filled only after it was handed back: a batch that is still in use does not change.

    Args:
        buffers: Arrays of a batch each, of as many rows as the largest batch has.
    """

    def __init__(self, buffers: Sequence[Arrays]) -> None:
        self.buffers = buffers
        # A queue is the fastest way to wait: handing a buffer over should cost little beside filling it.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in buffers:
            self._free.put(None)
        self._is_closed = threading.Event()
        self._taken = 0
        self._handed_back = 0
        self._in_use: list[Callable[[], object] | None] = [None] * len(buffers)

    def take(self, rows: int) -> Arrays:
        """Return the next buffer, cut to so many rows, once it was handed back.

        Raises:
            RingClosedError: It will not be handed back.
        """
        self._free.get()
        if self._is_closed.is_set():
            raise RingClosedError
        index = self._taken % len(self.buffers)
        self._taken += 1
        wait = self._in_use[index]
        if wait is not None:
            wait()
        return {name: array[:rows] for name, array in self.buffers[index].items()}

    def hand_back(self, wait: Callable[[], object] | None) -> None:
        """Hand back the buffer that was taken first of those in use.

        Args:
            wait: Returns when nothing reads the buffer any more: a copy to a device may still go on. It is called by
                the thread that fills the buffer next. None: nothing reads it.
        """
        assert self._handed_back < self._taken, "more buffers handed back than taken"
        self._in_use[self._handed_back % len(self.buffers)] = wait
        self._handed_back += 1
        self._free.put(None)

    def close(self) -> None:
        """Wake a thread that waits for a buffer."""
        self._is_closed.set()
        self._free.put(None)


def prefetched(batches: Iterator[Arrays]) -> Generator[Arrays, None, None]:
    """Read ahead in a thread, which ends with this generator; an error there is raised here."""
    ready: queue.SimpleQueue[Arrays | BaseException | None] = queue.SimpleQueue()
    room: queue.SimpleQueue[None] = queue.SimpleQueue()
    stopped = threading.Event()

    def read() -> None:
        try:
            for batch in batches:
                room.get()
                if stopped.is_set():
                    return
                ready.put(batch)
            ready.put(None)
        # Every exception is passed on to the consumer, which would wait forever for a thread that just ended.
        except BaseException as error:
            ready.put(error)

    for _ in range(PREFETCH):
        room.put(None)
    thread = threading.Thread(target=read, name="dkan-loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            room.put(None)
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        room.put(None)
        # Wait for the thread, as the caller may close the shards next.
        thread.join()
