"""Rows in memory, read like those of a prepared split."""

from collections.abc import Sequence

import numpy as np

from dkan_core.utils.arrays import Arrays, Int64


class ArraysReader:
    """Reads rows of arrays as ``ShardReader`` reads those of shards; the rows should be shuffled as well.

    Args:
        arrays: ``labels`` (N, L), and ``numeric`` (N, F), ``categorical`` (N, C), ``weight`` (N,) where there are any.

    >>> ArraysReader({"labels": np.arange(6).reshape(6, 1)}).gather([(4, 6), (0, 1)])["labels"].ravel()
    array([4, 5, 0])
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.rows = len(arrays["labels"])
        self.starts = np.array([0, self.rows], dtype=np.int64)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays."""
        return sum(array.nbytes for array in self.arrays.values()) // max(1, self.rows)

    def empty(self, rows: int) -> Arrays:
        """Return arrays for so many rows, with nothing in them yet."""
        return {name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in self.arrays.items()}

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Return the rows of ``extents`` (first, past the last), one after the other, in ``out`` if it is given."""
        return {
            name: np.concatenate(
                [array[start:stop] for start, stop in extents] or [array[:0]], out=None if out is None else out[name]
            )
            for name, array in self.arrays.items()
        }

    def keep_in_memory(self) -> None:
        """Do nothing: the rows are there."""
