"""Choosing a preprocessor: knots and vocabularies from a sample of the train split."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.decimals import to_float64
from dkan_core.data.encoding.column_hints import REMEDIES, stored_as_text
from dkan_core.data.encoding.column_threads import map_columns
from dkan_core.data.encoding.distinct import DistinctValues, distinct_values
from dkan_core.data.encoding.preprocessor import (
    MAX_BUCKETS,
    MISSING,
    SCORE_LIMIT,
    STEPS,
    CategoryFeature,
    CodedFeature,
    NumericFeature,
    Preprocessor,
    ValueFeature,
    category_codes,
)
from dkan_core.data.encoding.raw_columns import column_named
from dkan_core.data.encoding.sparse import MAX_IDS, SparseFeature, count_ids, fit_sparse
from dkan_core.data.encoding.value_counts import count_texts
from dkan_core.data.source.times import TimePart, time_parts
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Float64, Int64
from dkan_core.utils.messages import SHOWN, Advice, counted, drop_advice

# A knot at each level that uint8 can store: more knots would tell apart what storage rounds together.
LEVELS = np.linspace(-SCORE_LIMIT, SCORE_LIMIT, STEPS + 1)
LEVEL_RANKS = np.array([NormalDist().cdf(level) for level in LEVELS])
# A quarter of a storage step. Where a knot's score misses its level by more, as after a value that many rows have,
# interpolation would lift the values before the jump towards the score behind it.
JUMP = 0.25 * 2 * SCORE_LIMIT / STEPS

# Twice what uint8 can store: up to here every distinct value has a knot, and so exactly its own mid-rank. Above, the
# knots lie at the levels, and a manifest stays at some 10 kB per column however many values there are.
MAX_EXACT_KNOTS = 512
# Bounds the manifest, and the embedding tables that are made from it. Rarer values are coded as unseen: a model would
# see too few of their rows to learn a weight.
MAX_VOCABULARY = 65_536
# A value that stands once says nothing about other rows; a column of such values alone is an identifier.
MIN_CATEGORY_ROWS = 2
# With the codes for "not frequent" and "missing" 256 per column, which bounds the weights that a value code may bring.
MAX_VALUE_CODES = 254
# Fewer rows leave the rate of positives at a value to chance: the standard error of a rate near one half is 0.11.
MIN_VALUE_ROWS = 20
# If the values with ``MIN_VALUE_ROWS`` rows cover less than half of the rows, as with days of a dozen rows each, values
# with at least ``MIN_FEW_ROWS`` rows get codes as well, provided that all codes then cover half of the rows. Whether
# these codes are used depends on their gain on unseen rows.
MIN_FEW_ROWS, MAX_FEW_CODES, FEW_SHARE = 8, 1022, 0.5
# Below, the column is as good as continuous, and the normal score says all. Exact values paid where they repeat: on
# the adult census (age, capital gain, hours) the average precision rose from 0.806 to 0.835 with them.
MIN_REPEATED_SHARE = 0.1
# Wide data, such as embeddings, would take five times the bytes per row: a code has 4 bytes, a uint8 score 1.
MAX_VALUE_CODED_COLUMNS = 256
# Up to here, different integers, and decimals of so many digits, stay different as float64.
MAX_EXACT_INTEGER, MAX_EXACT_DIGITS = 2**53, 15

Useless = Literal["refuse", "leave out"]


class _UnusableColumnError(Exception):
    """A column cannot be a feature as it is.

    Args:
        name: Its name.
        problem: What is wrong with it, as the message goes on after the name.
        remedy: What else can be done than to leave it out. Default: nothing.
    """

    def __init__(self, name: str, problem: str, remedy: str = "") -> None:
        super().__init__(name, problem)
        self.name, self.problem, self.remedy = name, problem, remedy


class _UselessColumnError(_UnusableColumnError):
    """A column says nothing about a row."""


class _UnusableColumns:
    """Collects the columns that cannot be used, so that one message names all of them."""

    def __init__(self, useless: Useless) -> None:
        self.errors: list[_UnusableColumnError] = []
        self._useless = useless

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take an error about a column, or drop it where the column may be left out."""
        try:
            yield
        except _UnusableColumnError as error:
            if self._useless == "refuse" or not isinstance(error, _UselessColumnError):
                self.errors.append(error)


class _FittedColumn(NamedTuple):
    feature: NumericFeature
    counts: list[int]
    codes: ValueFeature | None


def fit_preprocessor(
    sample: pa.Table,
    numeric: Sequence[str],
    categorical: Sequence[str],
    numeric_dtype: Literal["uint8", "float16", "float32"],
    where: str,
    *,
    times: Sequence[str] = (),
    sparse: Sequence[str] = (),
    max_categories: int | None = None,
    value_counts: Mapping[str, pa.Table] = MappingProxyType({}),
    useless: Useless = "refuse",
    advice: Advice = drop_advice,
) -> Preprocessor:
    """Choose knots and vocabularies.

    Args:
        sample: Rows of the train split.
        numeric: Columns of numbers.
        categorical: Columns of strings or booleans.
        numeric_dtype: How normal scores are stored.
        where: The rows, as messages should call them.
        times: Columns of dates or times: of each, the seconds and the parts of the calendar that vary are features.
        sparse: Columns of lists of ids or of bit vectors.
        max_categories: Where a category column has more values, or one of lists more ids, only the most frequent have
            a code of their own; the others share some by their hash. Default: values that occur once are unseen.
        value_counts: By column of categories or ids, the rows of each of its values (``ValueCounts.tables``), where
            more rows than the sample were counted. Default: those of the sample.
        useless: What becomes of a column that holds no value at all, or a category column no value of which repeats.
        advice: Says of columns how to leave them out.

    Raises:
        DataError: There are useless columns, and they are to be refused; or float64 cannot tell a column's values
            apart. The message names all of them.
    """
    unusable = _UnusableColumns(useless)
    coded: list[CodedFeature] = []
    counts: dict[str, list[int]] = {}
    for name in categorical:
        column = column_named(sample, name, where)
        values = count_texts(column, name, where) if name not in value_counts else value_counts[name]
        with unusable.collected():
            feature = _fit_category(values, column, name, max_categories)
            coded.append(feature)
            counts[name] = _rows_by_code(values, feature, where)
    parts = [part for name in times for part in time_parts(name, sample.schema.field(name).type)]
    columns = [*((name, None) for name in numeric), *((part.name, part) for part in parts)]
    scored = _fit_columns(sample, where, columns, unusable)
    coded += [each.codes for each in scored if each.codes is not None]
    lists: list[SparseFeature] = []
    for name in sparse:
        column = column_named(sample, name, where)
        ids = count_ids(column, name, where) if name not in value_counts else value_counts[name]
        with unusable.collected():
            lists.append(_fit_sparse(ids, column, name, where, max_categories))
    if unusable.errors:
        indices = {name: index for index, name in enumerate(sample.column_names)}
        raise _refusal(sorted(unusable.errors, key=lambda each: indices[each.name]), where, advice)
    return Preprocessor(
        numeric=[each.feature for each in scored],
        coded=coded,
        sparse=lists,
        numeric_dtype=numeric_dtype,
        counts={each.feature.name: each.counts for each in scored} | counts,
    )


def _refusal(unusable: Sequence[_UnusableColumnError], where: str, advice: Advice) -> DataError:
    """Return the error that names columns and what can be done about them."""
    first, leave_out = unusable[0], advice([each.name for each in unusable])
    if len(unusable) == 1:
        remedy = f"{first.remedy}, or " if first.remedy else ""
        return DataError(f"{where}: column {first.name!r} {first.problem}; {remedy}{leave_out}")
    listed = "; ".join(f"{each.name!r} {each.problem}" for each in unusable[:SHOWN])
    return DataError(f"{where}: {len(unusable):,} columns cannot be used: {listed}; {leave_out}")


def _fit_columns(
    sample: pa.Table, where: str, columns: Sequence[tuple[str, TimePart | None]], unusable: _UnusableColumns
) -> list[_FittedColumn]:
    """Fit columns of numbers and parts of those of times, on all cores; those that say something, in their order."""
    with_codes = len(columns) <= MAX_VALUE_CODED_COLUMNS

    def fit_column(column: tuple[str, TimePart | None]) -> _FittedColumn | None:
        fitted = None
        with unusable.collected():
            fitted = _fit_column(sample, where, *column, with_codes=with_codes)
        return fitted

    return [fitted for fitted in map_columns(fit_column, columns) if fitted is not None]


def _fit_column(
    sample: pa.Table, where: str, name: str, time: TimePart | None, *, with_codes: bool
) -> _FittedColumn | None:
    """Fit a column of numbers, or a part of one of times; None where that part has a single value."""
    found = distinct_values(sample, name, where, time)
    if time is None:
        _check_told_apart(column_named(sample, name, where), name)
    elif time.part != "seconds" and len(found.values) < 2:
        return None  # the hour of dates, or the month in data of one month
    feature, counts = _fit_numeric(found, name)
    codes = _fit_value_codes(found, name) if with_codes else None
    return _FittedColumn(feature.model_copy(update={"time": time}), counts, codes)


def _check_told_apart(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    """Refuse a column where different integers or decimals, such as long keys, are the same number in float64."""
    if pa.types.is_integer(column.type):
        exact = all(abs(value or 0) <= MAX_EXACT_INTEGER for value in pc.min_max(column).as_py().values())
    else:
        exact = not pa.types.is_decimal(column.type) or column.type.precision <= MAX_EXACT_DIGITS
    if exact:
        return
    found, kept = (pc.count_distinct(values, mode="only_valid").as_py() for values in (column, to_float64(column)))
    if kept < found:
        problem = f"has {found:,} different values, which are only {kept:,} as 64-bit floats"
        raise _UnusableColumnError(name, problem, "subtract an offset, read them as categories (--categorical)")


def _fit_numeric(found: DistinctValues, name: str) -> tuple[NumericFeature, list[int]]:
    """Return a column's knots and scores, and how many rows are between the knots."""
    if not len(found.values):
        raise _no_value(name, found.missing)
    if len(found.values) > MAX_EXACT_KNOTS:
        chosen, inverse = _knots_at_levels(found)
    else:
        chosen = np.arange(len(found.values))
        inverse = _inverse_normal(found.mid_ranks(chosen))
    if len(found.values) == 1 and found.missing:
        # Models read a missing value as score 0, which would also be the score of the only value. So this value gets
        # the distance that it would have from a second value below it with as many rows as are missing.
        missing = found.missing / found.rows
        below, above = _inverse_normal(np.array([missing / 2, (1 + missing) / 2]))
        inverse = np.array([above - below])
    scores = np.clip(inverse, -SCORE_LIMIT, SCORE_LIMIT)
    # Six decimals (1/23,000 of a storage step) keep the manifest short, and hide differences in the last bit of the
    # inverse normal between machines.
    feature = NumericFeature(name=name, knots=found.values[chosen].tolist(), scores=scores.round(6).tolist())
    return feature, found.count_between(chosen)


def _knots_at_levels(found: DistinctValues) -> tuple[Int64, Float64]:
    """Return which of many values are knots, and the inverse normal of their ranks."""
    # The first value at or above each level's rank; levels above the last value use the last value.
    above = np.minimum(found.indices_from(LEVEL_RANKS), len(found.values) - 1)
    inverse = _inverse_normal(found.mid_ranks(above))
    # Where the score jumps, as at a frequent value, the last value before the jump keeps its own score too.
    before = np.maximum(above[inverse - LEVELS > JUMP] - 1, 0)
    chosen, first = np.unique(np.concatenate([above, before]), return_index=True)
    return chosen, np.concatenate([inverse, _inverse_normal(found.mid_ranks(before))])[first]


def _inverse_normal(ranks: Float64) -> Float64:
    return np.array([*map(_inverse_normal_of, ranks.tolist())])


# Cached, because columns without repeated values have mostly the same ranks.
@lru_cache(maxsize=4 * len(LEVELS))
def _inverse_normal_of(rank: float) -> float:
    return NormalDist().inv_cdf(rank)


def _fit_value_codes(found: DistinctValues, name: str) -> ValueFeature | None:
    """Code the frequent values of a numeric column, or None where that would say nothing new."""
    if found.most < MIN_FEW_ROWS and not found.missing:
        return None
    counts = found.counts
    frequent = _most_frequent(found, MIN_VALUE_ROWS, MAX_VALUE_CODES)
    if counts[counts >= MIN_VALUE_ROWS].sum() < FEW_SHARE * found.rows:
        more = _most_frequent(found, MIN_FEW_ROWS, MAX_FEW_CODES)
        if counts[more].sum() >= FEW_SHARE * found.rows:
            frequent = more
    # With only two values, the score alone tells them apart.
    repeats = len(found.values) > 2 and counts[frequent].sum() >= MIN_REPEATED_SHARE * found.rows
    if not repeats and not found.missing:
        return None
    vocabulary = np.sort(found.values[frequent]).tolist() if repeats else []
    return ValueFeature(name=name, vocabulary=vocabulary)


def _most_frequent(found: DistinctValues, rows: int, most: int) -> Int64:
    """Return the indices of the values with at least so many rows, at most the ``most`` most frequent of them.

    They are by falling count and, among equals, by value: the choice must not depend on the order of the rows.
    """
    counts = found.counts
    frequent = np.flatnonzero(counts >= rows)
    order = np.lexsort((found.values[frequent], -counts[frequent]))[:most]
    chosen: Int64 = frequent[order]
    return chosen


def _fit_category(
    values: pa.Table, column: pa.ChunkedArray | pa.Array, name: str, max_categories: int | None
) -> CategoryFeature:
    """Choose which of a column's values get a code, given all values and their rows from ``count_texts``."""
    rows = pc.sum(values["rows"]).as_py()
    values = values.filter(pc.is_valid(values["value"]))
    if not len(values):
        raise _no_value(name, rows)
    repeated = values.filter(pc.greater_equal(values["rows"], MIN_CATEGORY_ROWS))
    if not len(repeated):
        held = stored_as_text(column)
        # Identifiers are often text that holds numbers, so such text is called an identifier here.
        problem = "looks like an identifier" if 2 * len(values) > rows else "is missing in most rows"
        problem = f"holds {held} as text" if held in ("amounts", "dates") else problem
        raise _UselessColumnError(
            name, f"{problem} ({counted(len(values), 'value')}, none repeats)", REMEDIES.get(held, "")
        )
    ordered = repeated.sort_by([("rows", "descending"), ("value", "ascending")])
    kept = ordered["value"].slice(0, max_categories or MAX_VOCABULARY).to_pylist()
    buckets = _hash_buckets(max_categories) if max_categories is not None and len(values) > max_categories else 0
    return CategoryFeature(name=name, vocabulary=kept, buckets=buckets)


def _rows_by_code(values: pa.Table, feature: CategoryFeature, where: str) -> list[int]:
    """Return how many rows have each code, as ``histograms.count_values`` does."""
    rows = np.zeros(feature.cardinality, np.int64)
    np.add.at(rows, category_codes(values["value"], feature, where), values["rows"].to_numpy())
    return rows.tolist()


def full_vocabularies(encoding: Preprocessor) -> list[str]:
    """Return a sentence for each category column with more values than may have a code."""
    found = []
    for feature in encoding.category_features:
        counts, size = (encoding.counts or {}).get(feature.name, []), len(feature.vocabulary)
        unseen = sum(counts[:MISSING])
        if unseen and size >= MAX_VOCABULARY and not feature.buckets:
            known = f"column {feature.name!r}: only the {size:,} most frequent values have a code"
            found.append(f"{known}; {unseen / sum(counts):.2%} of the rows hold others; see --max-categories")
    return found


def _fit_sparse(
    ids: pa.Table, column: pa.ChunkedArray | pa.Array, name: str, where: str, max_categories: int | None
) -> SparseFeature:
    feature = fit_sparse(column, name, where, ids, max_categories, _hash_buckets(max_categories or MAX_IDS))
    if feature is None:
        raise _no_value(name, len(column))
    return feature


def _hash_buckets(max_categories: int) -> int:
    """Return how many codes the values share that have none of their own: a quarter as many as have one.

    >>> [_hash_buckets(count) for count in (1, 100, 50_000)]
    [1, 25, 256]
    """
    return min(MAX_BUCKETS, max(1, max_categories // 4))


def _no_value(name: str, rows: int) -> _UselessColumnError:
    return _UselessColumnError(name, f"holds no value in {counted(rows, 'row')} of train")
