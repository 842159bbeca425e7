"""Source columns: the features that a column became in the prepared arrays, and how its values are read and set there.

A numeric column has a normal score and often also a code of its own for each frequent value. Both always change
together: a column is set to a value with the functions that encoded the data.

Shape suffixes: N rows, M changed rows, P values of one column.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import (
    FIRST_CODE,
    SCORE_LIMIT,
    STEPS,
    CodedFeature,
    NumericFeature,
    Preprocessor,
    ValueFeature,
    normal_scores,
    quantize,
    value_codes,
)
from dkan_core.data.encoding.sparse import SparseFeature
from dkan_core.utils.arrays import Array, Arrays, Float64

# If the model has no weights for single values, at most this many frequent values are drawn as marks: more would hide
# the smooth curve that it did learn.
FEW_VALUES = 16
# Most values at one end of a column that may stand for unknown, as 97, 98 and 99 do, and the share of rows that the
# outermost one must have.
UNKNOWN_VALUES, UNKNOWN_SHARE = 3, 0.005
# Seconds of a day.
DAY = 86_400
# Columns with at most this many distinct values are read back exactly. With more, two values may share a storage step
# (254 of them span all scores), and values are interpolated between knots.
EXACT_KNOTS = 100


@dataclass(frozen=True, kw_only=True)
class Column:
    """A source column: its features in the encoding, and their indices in the arrays."""

    name: str
    numeric: NumericFeature | None = None
    numeric_index: int = -1
    coded: CodedFeature | None = None
    code_index: int = -1
    exact: bool = True
    """Whether the model has weights for single values of a numeric column."""

    dtype: str = "uint8"

    sparse: SparseFeature | None = None
    """The feature of a column of lists of ids; None for other columns."""

    sparse_index: int = -1
    first_code: int = 0
    """The first of its codes in the array ``sparse``, which has those of all such columns."""

    @property
    def last_code(self) -> int:
        """The last of its codes there."""
        return self.first_code + (self.sparse.size if self.sparse else 0) - 1

    @property
    def kind(self) -> str:
        """Return "numeric", "category" or "ids"."""
        return "ids" if self.sparse else "category" if self.numeric is None else "numeric"

    @property
    def indices(self) -> list[tuple[str, int]]:
        """Return the arrays that hold the column, each with the column's index in it."""
        indices = (("numeric", self.numeric_index), ("categorical", self.code_index), ("sparse", self.sparse_index))
        return [(name, index) for name, index in indices if index >= 0]

    @property
    def knots(self) -> Float64:
        """Return the values between which a numeric column's scores are linear."""
        return np.asarray(self.numeric.knots if self.numeric else [], dtype=np.float64)

    @property
    def frequent(self) -> Float64:
        """Return the values shown apart from the curve: those with weights of their own, or a few coded ones."""
        return self.coded_values if self.exact or len(self.coded_values) <= FEW_VALUES else np.empty(0)

    @property
    def coded_values(self) -> Float64:
        """Return the values of a numeric column that have codes of their own in the data."""
        return np.asarray(self.coded.vocabulary if self.numeric and self.coded else [], dtype=np.float64)

    @property
    def apart(self) -> Float64:
        """Return the values of a numeric column that stand for unknown, such as -999.

        They are frequent, and their distance to all other values is larger than the range of these.
        """
        knots, scores = self.knots, np.asarray(self.numeric.scores if self.numeric else [])
        first, last = 0, len(knots)
        # Two passes: while 9999 counts as the other end, -999 does not look far away.
        for _ in range(0 if self.is_calendar else 2):
            first += _values_apart(knots[first:last], scores[first:last])
            last -= _values_apart(-knots[first:last][::-1], -scores[first:last][::-1])
        return np.concatenate([knots[:first], knots[last:]])

    @property
    def is_time(self) -> bool:
        """Return whether a numeric column holds seconds since 1970, read of dates or times."""
        return self._part == "seconds"

    @property
    def is_weekday(self) -> bool:
        """Return whether a numeric column holds weekdays, of which 0 is Monday."""
        return self._part == "weekday"

    @property
    def is_calendar(self) -> bool:
        """Return whether the values of a numeric column are written as dates or weekdays."""
        return self.is_time or self.is_weekday

    @property
    def step(self) -> float | None:
        """Return the seconds of a day, or 1, if a numeric column holds only whole days or whole numbers; else None."""
        if self.is_time and np.all(self.knots % DAY == 0):
            return DAY
        return 1.0 if self.whole else None

    def rounded(self, values: Float64) -> Float64:
        """Return the nearest values that rows may have: whole numbers, or days, where the column holds no others."""
        return np.rint(values / self.step) * self.step if self.step else values

    @property
    def _part(self) -> str | None:
        return self.numeric.time.part if self.numeric is not None and self.numeric.time is not None else None

    @property
    def whole(self) -> bool:
        """Return whether a numeric column holds whole numbers alone."""
        return bool(np.all(self.knots == np.rint(self.knots)))


@dataclass(frozen=True)
class Cells:
    """What the arrays hold for P values of a column; None where the column has no such feature."""

    scores_P: Array | None
    codes_P: Array | None
    sparse_PS: Array | None = None
    """Codes of a column of ids, 0 where there is none."""

    def __len__(self) -> int:
        return next((len(array) for array in self._arrays if array is not None), 0)

    def __getitem__(self, indices: slice | npt.NDArray[np.int64]) -> "Cells":
        """Return what the arrays hold for some of the values."""
        return Cells(*(None if array is None else array[indices] for array in self._arrays))

    @property
    def _arrays(self) -> tuple[Array | None, ...]:
        return self.scores_P, self.codes_P, self.sparse_PS


def _values_apart(knots: Float64, scores: Float64) -> int:
    """Return how many of the lowest values probably stand for unknown.

    >>> _values_apart(np.array([-999.0, 5.0, 40.0, 90.0]), np.array([-2.0, -1.7, 0.0, 2.9]))
    1
    """
    # A value's score is that of the middle of its rows, hence half the share.
    if len(scores) and scores[0] < NormalDist().inv_cdf(UNKNOWN_SHARE / 2):
        return 0
    for count in range(min(UNKNOWN_VALUES, len(knots) - 2), 0, -1):
        if knots[count] - knots[count - 1] > knots[-1] - knots[count]:
            return count
    return 0


Rows = npt.NDArray[np.int64]
"""Indexes of rows."""

Settings = Sequence[tuple[Column, Cells]]
"""Columns, each with a value for each changed row."""


def source_columns(preprocessor: Preprocessor, exact: Collection[int] | None = None) -> list[Column]:
    """Return every source column that the model reads, each once.

    Args:
        preprocessor: The encoding.
        exact: Which of its coded features have weights for single values in the model; None for all.
    """
    value_coded = {feature.name: index for index, feature in enumerate(preprocessor.coded) if feature.kind == "value"}
    columns = []
    for index, feature in enumerate(preprocessor.numeric):
        code = value_coded.get(feature.name, -1)
        coded = preprocessor.coded[code] if code >= 0 else None
        columns.append(
            Column(
                name=feature.name,
                numeric=feature,
                numeric_index=index,
                coded=coded,
                code_index=code,
                exact=exact is None or code in exact,
                dtype=preprocessor.numeric_dtype,
            )
        )
    return columns + [
        Column(name=coded.name, coded=coded, code_index=index)
        for index, coded in enumerate(preprocessor.coded)
        if coded.kind == "category"
    ]


def sparse_columns(preprocessor: Preprocessor) -> list[Column]:
    """Return the columns of which each row names a few of many ids."""
    starts = itertools.accumulate((feature.size for feature in preprocessor.sparse), initial=1)
    return [
        Column(name=feature.name, sparse=feature, sparse_index=index, first_code=start)
        for index, (feature, start) in enumerate(zip(preprocessor.sparse, starts, strict=False))
    ]


def sparse_codes(column: Column, sparse_NS: Array) -> Array:
    """Return the codes of one column of ids, 0 for those of others and where there is none.

    Shape:
        - Input and output: ``(N, S)``
    """
    inside_NS = (sparse_NS >= column.first_code) & (sparse_NS <= column.last_code)
    codes_NS: Array = np.where(inside_NS, sparse_NS, sparse_NS.dtype.type(0))
    return codes_NS


def encode_values(column: Column, values_P: Float64) -> Cells:
    """Encode values of a numeric column as ``prepare`` does, NaN as missing."""
    assert column.numeric is not None
    values_P = np.asarray(values_P, dtype=np.float64)
    # Quantized as in storage: the model never saw other scores.
    scores_P = quantize(normal_scores(values_P, column.numeric), column.dtype)
    return Cells(scores_P, value_codes(values_P, column.coded) if isinstance(column.coded, ValueFeature) else None)


def read_values(column: Column, arrays: Arrays) -> Float64:
    """Return a numeric column in its original unit, NaN where missing.

    Frequent values and those of columns with few distinct values are exact. Others are as exact as the stored score:
    the rows of one uint8 step are spread evenly over the values that the step stands for.

    Shape:
        - Output: ``(N,)``
    """
    assert column.numeric is not None
    stored_N, scores = arrays["numeric"][:, column.numeric_index], np.asarray(column.numeric.scores)
    exact = len(column.knots) <= EXACT_KNOTS
    missing_N = stored_N == 0 if stored_N.dtype == np.uint8 else np.isnan(stored_N)
    scores_N = stored_N.astype(np.float64)
    if stored_N.dtype == np.uint8:
        within_N = 0.0 if exact else _even_offsets(stored_N)
        scores_N = (scores_N + within_N - 1) * (2 * SCORE_LIMIT / STEPS) - SCORE_LIMIT
    if exact:
        values_N = column.knots[np.searchsorted((scores[1:] + scores[:-1]) / 2, scores_N)]
    else:
        # Extreme values share the scores ±3; the value nearest the middle represents them.
        first, last = np.diff(scores, prepend=-np.inf) > 0, np.diff(scores, append=np.inf) > 0
        kept = np.where(scores < 0, last, first) & ~np.isin(column.knots, column.apart)
        values_N = np.interp(scores_N, scores[kept], column.knots[kept])
        values_N = column.rounded(values_N)
        for value in column.apart:
            values_N[stored_N == encode_values(column, np.array([value])).scores_P] = value
    if len(column.coded_values):
        codes_N = arrays["categorical"][:, column.code_index]
        known_N = codes_N >= FIRST_CODE
        values_N[known_N] = column.coded_values[codes_N[known_N] - FIRST_CODE]
    values_N[missing_N] = np.nan
    return values_N


def _even_offsets(levels_N: npt.NDArray[np.uint8]) -> Float64:
    """Spread the rows of each level evenly over -0.5 to 0.5.

    >>> _even_offsets(np.array([7, 9, 7], np.uint8)).tolist()
    [-0.25, 0.0, 0.25]
    """
    order = np.argsort(levels_N, kind="stable")
    counts = np.bincount(levels_N, minlength=256)
    starts = np.cumsum(counts) - counts
    offsets_N = np.empty(len(levels_N))
    ranks = np.arange(len(levels_N)) - starts[levels_N[order]]
    offsets_N[order] = (ranks + 0.5) / counts[levels_N[order]] - 0.5
    return offsets_N


def read_codes(column: Column, arrays: Arrays) -> Array:
    """Return a category column's codes.

    Shape:
        - Output: ``(N,)``
    """
    codes_N: Array = arrays["categorical"][:, column.code_index]
    return codes_N


def redrawn(arrays: Arrays, column: Column, order_N: Rows) -> tuple[Rows, Cells]:
    """Return the rows whose value changes if each takes the value of another row, and the new values.

    Args:
        arrays: Rows, of which the first N take part.
        column: The column to change.
        order_N: The row whose value each row takes.
    """
    if column.sparse is not None:
        own_NS = sparse_codes(column, arrays["sparse"][: len(order_N)])
        rows_M = np.flatnonzero((own_NS != own_NS[order_N]).any(axis=1))
        return rows_M, Cells(None, None, own_NS[order_N[rows_M]])
    changes_N, held = np.zeros(len(order_N), dtype=bool), {}
    for name, index in column.indices:
        own_N = arrays[name][: len(order_N), index]
        held[name] = own_N[order_N]
        changes_N |= held[name] != own_N
    rows_M = np.flatnonzero(changes_N)
    return rows_M, Cells(held.get("numeric"), held.get("categorical"))[rows_M]


def changed_rows(arrays: Arrays, rows_M: Rows, settings: Settings) -> Arrays:
    """Return some rows with each column of ``settings`` set to a value for each of them.

    Args:
        arrays: Rows (N).
        rows_M: Which of them, each as often as it is changed.
        settings: The columns, each with M values.
    """
    changed = {name: array[rows_M] for name, array in arrays.items()}
    for column, cells in settings:
        if cells.scores_P is not None:
            changed["numeric"][:, column.numeric_index] = cells.scores_P
        if cells.codes_P is not None:
            changed["categorical"][:, column.code_index] = cells.codes_P
        if cells.sparse_PS is not None:
            kept_MS = changed["sparse"] - sparse_codes(column, changed["sparse"])
            changed["sparse"] = np.concatenate([kept_MS, cells.sparse_PS], axis=1)
    return changed
