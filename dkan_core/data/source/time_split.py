"""Splits by time: the values of a column at which valid and test begin.

The column is read once, before anything else, in bounded memory: beyond a number of distinct values, neighbours are
counted as one. The result depends neither on the order of the rows nor on how they are cut into parts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.decimals import to_float64
from dkan_core.data.source.footer_checks import missing_error
from dkan_core.data.source.partition import Fragment, open_fragments
from dkan_core.data.source.reading import read_batches
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.errors import DataError
from dkan_core.utils.arrays import UInt64
from dkan_core.utils.messages import counted

# Distinct values that are counted: 16 MB with their counts. Dates and hours have fewer; milliseconds have more, and a
# bound is then off by a millionth of the range.
MAX_VALUES = 1 << 20
SIGN = np.uint64(1 << 63)
# In a rule by time, the keys of the first time of valid and of test.
TIME_BOUNDS = ("valid from", "test from")
# Number of stretches of the train split: enough that each half of them covers every season, and few enough that a
# day lies within one.
STRETCHES = 32


@dataclass(frozen=True, kw_only=True)
class TimeBounds:
    """Where valid and test begin."""

    valid: int
    """Key of the first value of valid, from ``time_keys``."""

    test: int | None
    """That of test; None where there is no test split."""

    valid_from: str
    """The first value of valid, as text."""

    test_from: str | None
    """That of test."""

    stretches: tuple[int, ...]
    """Train is cut into stretches of time with about equal rows: the key at which each but the first begins."""

    def split_of(self, keys_N: UInt64) -> npt.NDArray[np.int8]:
        """Return the index in ``SPLITS`` of each row."""
        bounds = np.array([self.valid] + ([] if self.test is None else [self.test]), np.uint64)
        return np.searchsorted(bounds, keys_N, side="right").astype(np.int8)

    def stretch_of(self, keys_N: UInt64) -> npt.NDArray[np.uint8]:
        """Return the number of each row's stretch of time; all that comes after train is in the last one."""
        return np.searchsorted(np.array(self.stretches, np.uint64), keys_N, side="right").astype(np.uint8)

    def describe(self) -> dict[str, str]:
        """Return the bounds as the manifest has them."""
        firsts = zip(TIME_BOUNDS, (self.valid_from, self.test_from), strict=True)
        return {name: first for name, first in firsts if first is not None}


def time_keys(column: pa.Array, name: str, path: str) -> UInt64:
    """Return a key of each value that sorts as the values do.

    Args:
        column: Integers, floats, decimals, dates or timestamps (N).
        name: The column, for messages.
        path: The file, for messages.

    Shape:
        - Output: ``(N,)``

    Raises:
        DataError: A value is missing.

    >>> time_keys(pa.array([3, -1, 2]), "t", "a.parquet").argsort().tolist()
    [1, 2, 0]
    """
    if column.null_count:
        raise missing_error(path, "split_by_time", name, column.null_count)
    if _is_integer_like(column.type):
        numbers = np.asarray(_as_integers(column).to_numpy(zero_copy_only=False))
        return numbers if numbers.dtype == np.uint64 else numbers.astype(np.int64).view(np.uint64) ^ SIGN
    # Adding 0 turns -0.0 into 0.0, as equal values must have the same key.
    floats = np.asarray(to_float64(column).to_numpy(zero_copy_only=False)) + 0.0
    if np.isnan(floats).any():
        raise missing_error(path, "split_by_time", name, int(np.isnan(floats).sum()))
    bits = floats.view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _is_integer_like(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _as_integers(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column
    return column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())


def _text_of(key: int, kind: pa.DataType) -> str:
    """Return the value that a key stands for, as text."""
    if not _is_integer_like(kind):
        bits = np.array([key ^ (1 << 63) if key >> 63 else key ^ (2**64 - 1)], np.uint64)
        return str(bits.view(np.float64)[0]).removesuffix(".0")
    if pa.types.is_uint64(kind):
        return str(key)
    number = key - (1 << 63)
    if pa.types.is_integer(kind):
        return str(number)
    # Arrow would need a time zone database, which may be missing; without a zone, a timestamp is shown in UTC.
    shown = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
    storage = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    text: str = pa.array([number], storage).view(shown).cast(pa.string())[0].as_py()
    text = re.sub(r"\.0+$", "", text)
    return f"{text}Z" if pa.types.is_timestamp(kind) and kind.tz else text


def find_time_bounds(
    fragments: Sequence[Fragment],
    column: str,
    percent: tuple[int, int, int],
    on_rows: Callable[[int], None],
    roles: ColumnRoles,
) -> TimeBounds:
    """Read a column of all rows and return where valid and test begin, as near to the shares as equal values allow.

    Args:
        fragments: What to read.
        column: The column.
        percent: Of rows in train, valid and test.
        on_rows: Called with the number of rows after each batch.
        roles: What the columns are for, and read as.

    Raises:
        DataError: A value is missing, or there are fewer different values than splits.
    """
    values, kind = KeyCounts(), pa.null()
    for file in open_fragments(fragments, roles):
        for batch in read_batches(file, [column]):
            kind = batch.column(0).type
            values.add(time_keys(batch.column(0), column, file.path))
            on_rows(batch.num_rows)
    keys, counts = values.sorted()
    wanted = 3 if percent[2] else 2
    if len(keys) < wanted:
        raise DataError(
            f"{fragments[0].path}: time column {column!r} has {counted(len(keys), 'different value')}; "
            f"{wanted} splits by time need at least {wanted}"
        )
    before = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    valid = _nearest(before, percent[0] / 100, 1, len(keys) - wanted + 2)
    test = _nearest(before, (percent[0] + percent[1]) / 100, valid + 1, len(keys)) if percent[2] else None
    return TimeBounds(
        valid=int(keys[valid]),
        test=None if test is None else int(keys[test]),
        valid_from=_text_of(int(keys[valid]), kind),
        test_from=None if test is None else _text_of(int(keys[test]), kind),
        stretches=_cut(keys[:valid], counts[:valid]),
    )


def _cut(keys: UInt64, counts: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the keys at which stretches of about equal rows begin, but for the first."""
    ends = np.cumsum(counts)
    indices = np.searchsorted(ends, ends[-1] * np.arange(1, STRETCHES) / STRETCHES)
    return tuple(int(key) for key in keys[np.unique(indices[indices > 0])])


def _nearest(before: npt.NDArray[np.float64], share: float, first: int, stop: int) -> int:
    """Return the index from ``first`` to below ``stop`` before which the share of rows is nearest to ``share``."""
    return first + int(np.argmin(np.abs(before[first:stop] - share)))


class KeyCounts:
    """How often each value occurs; of more than ``MAX_VALUES``, those that differ in low bits alone count as one."""

    def __init__(self) -> None:
        self.keys: UInt64 = np.empty(0, np.uint64)
        self.counts = np.empty(0, np.int64)
        self.shift = np.uint64(0)

    def add(self, keys_N: UInt64) -> None:
        """Count some values."""
        found, counts = np.unique(keys_N >> self.shift, return_counts=True)
        self._merge(np.concatenate([self.keys, found]), np.concatenate([self.counts, counts]))
        # One bit at a time: how many are dropped in the end follows from the values alone, not from their order.
        while len(self.keys) > MAX_VALUES:
            self.shift += np.uint64(1)
            self._merge(self.keys >> np.uint64(1), self.counts)

    def _merge(self, keys: UInt64, counts: npt.NDArray[np.int64]) -> None:
        self.keys, indices = np.unique(keys, return_inverse=True)
        self.counts = np.bincount(indices, counts, len(self.keys)).astype(np.int64)

    def sorted(self) -> tuple[UInt64, npt.NDArray[np.int64]]:
        """Return the smallest key of each value, ascending, and how often it occurs."""
        return self.keys << self.shift, self.counts
