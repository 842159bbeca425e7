"""The distinct values of a numeric column and how often each occurs, from one sort in the column's own type."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.preprocessor import Float64, column_of_numbers, numbers

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DistinctValues:
    """What values a column holds.

    Shape:
        - values, up_to, counts: ``(U,)``
    """

    values: Float64
    """Rising."""

    up_to: Int64
    """Rows that hold that value or a smaller one (U,)."""

    missing: int
    """Rows that hold null, NaN or infinity."""

    @property
    def rows(self) -> int:
        """Rows of the column."""
        return (int(self.up_to[-1]) if len(self.up_to) else 0) + self.missing

    @property
    def counts(self) -> Int64:
        """Rows of each value."""
        return np.diff(self.up_to, prepend=0)

    def count_between(self, places: Int64) -> list[int]:
        """Count rows as ``histograms.count_up_to`` does: missing, up to each of some values, and above the last.

        Args:
            places: Rising indices of the values.

        >>> DistinctValues(np.array([0.5, 1.0, 9.0]), np.array([1, 3, 4]), 1).count_between(np.array([1]))
        [1, 3, 1]
        """
        ends = [0, *self.up_to[places].tolist(), self.rows - self.missing]
        return [self.missing, *(after - before for before, after in itertools.pairwise(ends))]


def distinct_values(rows: pa.RecordBatch | pa.Table, name: str, where: str) -> DistinctValues:
    """Find the distinct values of a column.

    Args:
        rows: The rows.
        name: The column; one that does not hold numbers raises DataError.
        where: The rows, as messages should call them.
    """
    column = column_of_numbers(rows, name, where)
    # In half the bytes of float64, the sort takes half the time, and finds the same.
    values: npt.NDArray[Any] = column.to_numpy() if pa.types.is_float32(column.type) else numbers(rows, name, where)
    finite = values[np.isfinite(values)]
    zeros = np.signbit(finite[finite == 0])
    if zeros.any() and not zeros.all():
        # Of 0.0 and -0.0, which are equal, the sort of float64 decides which one is kept, as it always has.
        kept, counts = np.unique(finite.astype(np.float64), return_counts=True)
        return DistinctValues(kept, np.cumsum(counts), len(values) - len(finite))
    finite.sort()
    last = np.flatnonzero(np.concatenate([finite[1:] != finite[:-1], [len(finite) > 0]]))
    return DistinctValues(finite[last].astype(np.float64), last + 1, len(values) - len(finite))
