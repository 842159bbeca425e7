"""The memory that a run's processes share: parameters, one gradient a worker, and snapshots for the evaluator.

It is an anonymous file (memfd), so a small /dev/shm is no limit and nothing is left behind when every process
dies. No field has two writers, and none is read before a message over a socket has handed it over.

Shape suffixes: P trained numbers, W workers, S snapshot slots.
"""

import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

SNAPSHOT_BYTES = 256 << 20
MIN_SLOTS, MAX_SLOTS = 5, 32

Float32 = npt.NDArray[np.float32]


class SharedMemory:
    """Views of the shared file.

    Args:
        handle: File descriptor, from ``create_memory`` or inherited.
        parameters: P.
        workers: W.
    """

    def __init__(self, handle: int, *, parameters: int, workers: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, _size(parameters, workers))
        flat = np.frombuffer(self._map, dtype=np.float32)
        rows = flat.reshape(1 + workers + snapshot_slots(parameters), -1)[:, :parameters]
        self.values_P: Float32 = rows[0]
        self.gradients_WP: Float32 = rows[1 : 1 + workers]
        self.snapshots_SP: Float32 = rows[1 + workers :]


def create_memory(*, parameters: int, workers: int) -> SharedMemory:
    """Create the shared file, all zeros."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("dkan", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, _size(parameters, workers))
    return SharedMemory(handle, parameters=parameters, workers=workers)


def _size(parameters: int, workers: int) -> int:
    page_numbers = mmap.PAGESIZE // 4
    padded = -(-parameters // page_numbers) * page_numbers
    return 4 * padded * (1 + workers + snapshot_slots(parameters))


def snapshot_slots(parameters: int) -> int:
    """Return how many snapshots may wait for the evaluator; memory is taken only by those that do.

    >>> snapshot_slots(1_000), snapshot_slots(1_000_000), snapshot_slots(1_000_000_000)
    (32, 32, 5)
    """
    return max(MIN_SLOTS, min(MAX_SLOTS, SNAPSHOT_BYTES // (4 * parameters)))
