"""The distinct values of a numeric column and how often each occurs, from one sort in the column's own type."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.raw_columns import column_of_numbers, numbers
from dkan_core.data.source.times import TimePart
from dkan_core.native.library import DistinctArguments, native_library
from dkan_core.utils.arrays import Float64, Int64


@dataclass(frozen=True)
class DistinctValues:
    """What values a column holds.

    Shape:
        - values, up_to, counts: ``(U,)``
    """

    values: npt.NDArray[Any]
    """Rising, of the column's own type where that is a float."""

    up_to: Int64
    """Rows that hold that value or a smaller one (U,)."""

    missing: int
    """Rows that hold null, NaN or infinity."""

    most: int
    """Rows that hold the most frequent value."""

    @property
    def rows(self) -> int:
        """Rows of the column."""
        return (int(self.up_to[-1]) if len(self.up_to) else 0) + self.missing

    @property
    def counts(self) -> Int64:
        """Rows of each value."""
        return np.diff(self.up_to, prepend=0)

    def mid_ranks(self, indices: Int64) -> Float64:
        """Return the mid-rank of some values, given by index: the share of smaller rows plus half of the equal ones."""
        counts = self.up_to[indices] - np.where(indices > 0, self.up_to[indices - 1], 0)
        ranks: Float64 = (self.up_to[indices] - counts / 2) / self.up_to[-1]
        return ranks

    def indices_from(self, ranks: Float64) -> Int64:
        """Return the index of the first value at or above each mid-rank, U where there is none."""
        # A first guess: a value's mid-rank lies between the cumulative shares of the value before it and its own.
        found: Int64 = np.searchsorted(self.up_to, (ranks * self.up_to[-1]).astype(np.int64))
        last = len(self.values) - 1
        while (short := (found <= last) & (self.mid_ranks(found.clip(max=last)) < ranks)).any():
            found += short
        while (beyond := (found > 0) & (self.mid_ranks((found - 1).clip(min=0)) >= ranks)).any():
            found -= beyond
        return found

    def count_between(self, indices: Int64) -> list[int]:
        """Count rows as ``histograms.count_up_to`` does: missing, up to each of some values, and above the last.

        Args:
            indices: Of the values, rising.

        >>> DistinctValues(np.array([0.5, 1.0, 9.0]), np.array([1, 3, 4]), 1, 2).count_between(np.array([1]))
        [1, 3, 1]
        """
        between: list[int] = np.diff(self.up_to[indices], prepend=0, append=self.rows - self.missing).tolist()
        return [self.missing, *between]


def distinct_values(
    rows: pa.RecordBatch | pa.Table, name: str, where: str, time: TimePart | None = None
) -> DistinctValues:
    """Find the distinct values of a column.

    Args:
        rows: The rows.
        name: The column; one that does not hold numbers raises DataError.
        where: The rows, as messages should call them.
        time: What of a column of dates or times is meant; None for a column of numbers.
    """
    column = column_of_numbers(rows, name, where, time)
    # float32 has half the bytes: sorting takes half the time and gives the same result.
    values: npt.NDArray[Any] = (
        column.to_numpy() if pa.types.is_float32(column.type) else numbers(rows, name, where, time)
    )
    # Adding 0 turns -0.0 into 0.0. They are equal, so the order of rows would decide which of them is kept.
    values = values + values.dtype.type(0)
    return _find_natively(values) or _find(values)


def _find_natively(values: npt.NDArray[Any]) -> DistinctValues | None:
    """Find what ``_find`` does; None without the extension."""
    library = native_library()
    if library is None:
        return None
    values = np.ascontiguousarray(values)
    distinct, up_to = np.empty_like(values), np.empty(len(values), np.int64)
    pointers = [array.ctypes.data for array in (values, distinct, up_to)]
    arguments = DistinctArguments(*pointers, rows=len(values), is_double=values.itemsize == 8)
    count = library.dkan_distinct(ctypes.byref(arguments))
    return DistinctValues(distinct[:count], up_to[:count], len(values) - arguments.finite, arguments.most)


def _find(values: npt.NDArray[Any]) -> DistinctValues:
    finite = np.sort(values[np.isfinite(values)])
    last = np.flatnonzero(np.concatenate([finite[1:] != finite[:-1], [len(finite) > 0]]))
    most = int(np.diff(last, prepend=-1).max(initial=0))
    return DistinctValues(finite[last], last + 1, len(values) - len(finite), most)
