"""First pass: a uniform sample of the train split, and exact counts of labels, categories, IDs, nulls and NaN.

The sample holds the whole train split when that has few rows. Of wide data fewer rows are kept, so that the sample
stays within some 512 MB.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config import PrepareConfig
from dkan_core.config.prepare import MAX_WEIGHT, SPLITS
from dkan_core.data.decimals import to_float64
from dkan_core.data.encoding.sparse import longest_rows
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.hashing import salted
from dkan_core.data.preparation.label_values import not_binary
from dkan_core.data.preparation.sampling import BottomK, Sample, smallest_keys_limit
from dkan_core.data.source.footer_checks import missing_error
from dkan_core.data.source.partition import Fragment
from dkan_core.data.source.positive import other_values
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.data.source.splits import SplitBatch, read_split_batches, split_of_keys
from dkan_core.data.source.time_split import TimeBounds
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted

# Measured: the ranks of such a sample are off by some 0.3%, a third of what one step of a uint8 score spans in the
# middle. Four times the rows would halve that, and cost four times the memory.
SAMPLE_ROWS = 1 << 18
# Ranks are then off by some 1.2%. Even if so many rows of wide data exceed ``SAMPLE_BYTES``, no fewer are kept.
MIN_SAMPLE_ROWS = 1 << 14
# Bounds the memory that ``prepare`` takes for wide data, at 8 bytes per value.
SAMPLE_BYTES = 512 << 20
# A label column has fewer distinct values. Counting is cut off here, as identifiers would fill the memory.
VALUES_REMEMBERED = 1000
# The order of the counts in a part's record, which has no keys.
BINARY = (0, 1, None)


@dataclass
class Counts:
    """Exact counts of all rows, or of a part of them."""

    rows: list[int]
    """Rows of each split, in the order of ``SPLITS``."""

    labels: dict[str, list[Counter[object]]]
    """For each label and split, how often each value occurs (None: null)."""

    invalid: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each numeric column that has any, the counts of "nan" and "inf" values (taken as missing)."""

    weights: list[float] = field(default_factory=lambda: [0.0] * len(SPLITS))
    """Sum of the rows' weights, of each split."""

    excluded: dict[str, list[Counter[object]]] = field(default_factory=dict)
    """The same as ``labels`` of the rows whose weight is 0; empty where there are no weights."""

    longest: dict[str, int] = field(default_factory=dict)
    """For each column of lists or bit vectors, the ids of the longest row."""

    others: dict[str, Counter[str]] = field(default_factory=dict)
    """For each label of which a value counts as 1, how often each other one occurs; of many values, the first."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON; labels hold 0, 1 and null alone."""
        labels, excluded = (_plain_counters(counters) for counters in (self.labels, self.excluded))
        plain = {"rows": self.rows, "labels": labels, "invalid": self.invalid, "weights": self.weights}
        also = {"excluded": excluded, "longest": self.longest, "others": self.others}
        return plain | {name: found for name, found in also.items() if found}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Counts":
        """Rebuild counts from their plain form."""
        kept = {name: plain[name] for name in ("rows", "invalid", "weights")}
        labels, excluded = (_counters(plain.get(name, {})) for name in ("labels", "excluded"))
        others = {name: Counter[str](values) for name, values in plain.get("others", {}).items()}
        return cls(**kept, labels=labels, excluded=excluded, longest=plain.get("longest", {}), others=others)

    def weighted(self, name: str, index: int) -> Counter[object]:
        """Return how often each value of a label occurs in a split, in rows with a weight above 0."""
        return self.labels[name][index] - (self.excluded[name][index] if self.excluded else Counter())

    def classes(self, index: int) -> dict[str, dict[str, int]]:
        """Return how often each label is 0, 1 and not measured in a split."""
        return {
            name: {"0": counters[index][0], "1": counters[index][1], "null": counters[index][None]}
            for name, counters in self.labels.items()
        }


def _plain_counters(counters: Mapping[str, Sequence[Counter[object]]]) -> dict[str, list[list[int]]]:
    return {name: [[counter[value] for value in BINARY] for counter in splits] for name, splits in counters.items()}


def _counters(plain: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[Counter[object]]]:
    def counter(counts: Sequence[int]) -> Counter[object]:
        return Counter({value: count for value, count in zip(BINARY, counts, strict=True) if count})

    return {name: [counter(counts) for counts in splits] for name, splits in plain.items()}


def merge_counts(parts: Sequence[Counts], roles: ColumnRoles) -> Counts:
    """Add up the counts of parts; the result does not depend on how rows were cut into them."""
    labels = _added([part.labels for part in parts])
    excluded = _added([part.excluded for part in parts])
    found = {name for part in parts for name in part.invalid}
    invalid = {
        name: {kind: sum(part.invalid.get(name, {}).get(kind, 0) for part in parts) for kind in ("nan", "inf")}
        for name in roles.numeric
        if name in found
    }
    rows = [sum(part.rows[index] for part in parts) for index in range(len(SPLITS))]
    weights = [sum(part.weights[index] for part in parts) for index in range(len(SPLITS))]
    longest = {name: max(part.longest.get(name, 0) for part in parts) for name in roles.sparse}
    others = {name: sum((part.others[name] for part in parts), Counter[str]()) for name in roles.positive}
    return Counts(
        rows=rows,
        labels=labels,
        excluded=excluded,
        invalid=invalid,
        weights=weights,
        longest=longest,
        others=others,
    )


def _added(parts: Sequence[Mapping[str, Sequence[Counter[object]]]]) -> dict[str, list[Counter[object]]]:
    return {
        name: [sum((part[name][index] for part in parts), Counter[object]()) for index in range(len(SPLITS))]
        for name in parts[0]
    }


def sample_rows(columns: int) -> int:
    """Return how many rows the statistics of a data set with ``columns`` feature columns are taken from.

    >>> sample_rows(20), sample_rows(768), sample_rows(10_000)
    (262144, 87381, 16384)
    """
    return max(MIN_SAMPLE_ROWS, min(SAMPLE_ROWS, SAMPLE_BYTES // (8 * columns)))


def sample_limit(rows: int, roles: ColumnRoles, config: PrepareConfig) -> np.uint64 | None:
    """Return the largest key of a row in the sample, or None where that is not known before the rows are read.

    Args:
        rows: Rows of all files.
        roles: Role of each column.
        config: How rows are split; its seed decides the sample.
    """
    if not config.splits_at_random or config.split_by != "row":
        return None
    return _row_sample_limit(rows, sample_rows(len(roles.features)), config)


# One process may survey many parts.
@lru_cache(maxsize=1)
def _row_sample_limit(rows: int, size: int, config: PrepareConfig) -> np.uint64 | None:
    seed = salted(config.seed, "sample")
    return smallest_keys_limit(rows, size, seed, lambda row_ids: split_of_keys(row_ids, config) == 0)


class Statistics(NamedTuple):
    """Result of the first pass."""

    counts: Counts
    """Of all rows."""

    sample: Sample
    """Of the train split at most ``sample_rows`` rows, feature columns only."""

    value_counts: ValueCounts
    """Of all rows of train."""


def collect_statistics(
    fragments: Sequence[Fragment],
    roles: ColumnRoles,
    config: PrepareConfig,
    on_rows: Callable[[int], None],
    bounds: TimeBounds | None = None,
    limit: np.uint64 | None = None,
    value_counts: ValueCounts | None = None,
) -> Statistics:
    """Read every row once, and check what can be checked row by row.

    Args:
        fragments: What to read, with the numbers of its rows.
        roles: Role of each column.
        config: How rows are split; its seed decides the sample.
        on_rows: Called with the number of rows after each batch.
        bounds: Where valid and test begin, of a split by time.
        limit: A key that no row of the sample exceeds, from ``sample_limit``.
        value_counts: Counts the values of its columns in all rows of train. Default: none are counted.
    """
    sample = BottomK(sample_rows(len(roles.features)), salted(config.seed, "sample"), limit)
    value_counts = value_counts or ValueCounts([])
    others = {name: Counter[str]() for name in roles.positive}
    counts = Counts(rows=[0] * len(SPLITS), labels=_no_labels(roles), others=others)
    if roles.weight is not None:
        counts.excluded = _no_labels(roles)
    for batch in read_split_batches(fragments, roles, config, on_rows, bounds, row_bytes=0):
        for index in range(len(SPLITS)):
            mask = pa.array(batch.split == index)
            counts.rows[index] += pc.sum(mask).as_py() or 0
            for name in roles.labels:
                count_label_values(counts.labels[name][index], batch.rows.column(name).filter(mask))
        for name in roles.labels:
            if any(len(counter) > VALUES_REMEMBERED for counter in counts.labels[name]):
                raise not_binary(name, counts.labels[name], batch.path)
        for name, value in roles.positive.items():
            count_others(counts.others[name], batch.source.column(name), value)
        if roles.weight is not None:
            _count_weights(counts, batch, roles.weight)
        sample.add(_counted(batch, counts, value_counts, roles), batch.row_ids, batch.split == 0)
    return Statistics(counts, sample.sample(), value_counts)


def _no_labels(roles: ColumnRoles) -> dict[str, list[Counter[object]]]:
    return {name: [Counter() for _ in SPLITS] for name in roles.labels}


def _count_weights(counts: Counts, batch: SplitBatch, name: str) -> None:
    weight = _checked_weights(batch.rows.column(name), name, batch.path)
    without = pc.equal(weight, 0)
    labels = counts.excluded.items() if pc.any(without).as_py() else ()
    for index in range(len(SPLITS)):
        mask = pa.array(batch.split == index)
        counts.weights[index] += float(pc.sum(weight.filter(mask)).as_py() or 0)
        for label, counters in labels:
            count_label_values(counters[index], batch.rows.column(label).filter(pc.and_(mask, without)))


def _counted(
    batch: SplitBatch, counts: Counts, value_counts: ValueCounts, roles: ColumnRoles
) -> Iterator[pa.RecordBatch]:
    """Yield the features, some columns at a time, after counting values, invalid ones, and ids of the longest row."""
    numeric, sparse, train = {*roles.numeric}, {*roles.sparse}, pa.array(batch.split == 0)
    for block in batch.features():
        value_counts.add(block, batch.path, train)
        _count_invalid(counts.invalid, block, [name for name in block.schema.names if name in numeric])
        lists = [name for name in block.schema.names if name in sparse]
        for name, ids in longest_rows(block, lists, batch.path).items():
            counts.longest[name] = max(ids, counts.longest.get(name, 0))
        yield block


def count_label_values(counter: Counter[object], values: pa.Array) -> None:
    """Count the values of a label's column, null among them."""
    for entry in pc.value_counts(values).to_pylist():
        counter[entry["values"]] += entry["counts"]


def count_others(counter: Counter[str], column: pa.Array, positive: str) -> None:
    """Count the values of a label other than the one that counts as 1; no new ones beyond ``VALUES_REMEMBERED``."""
    for value, rows in other_values(column, positive).items():
        if value in counter or len(counter) < VALUES_REMEMBERED:
            counter[value] += rows


def _checked_weights(column: pa.Array, name: str, path: str) -> pa.Array:
    """Return the rows' weights as they will be stored, after a check of all."""
    # float32, as weights are stored: a weight that overflows in it is refused here.
    weight = column.cast(pa.float32(), safe=False)
    missing = pc.sum(weight.is_null(nan_is_null=True)).as_py()
    if missing:
        raise missing_error(path, "weight", name, missing)
    # The limit as float32 too: it is rounded up a little.
    limit = pa.scalar(MAX_WEIGHT, pa.float32())
    bad = pc.sum(pc.or_(pc.less(weight, 0), pc.greater(weight, limit))).as_py()
    if bad:
        raise DataError(
            f"{path}: weight column {name!r} must be from 0 to {MAX_WEIGHT:g}; it is not in {counted(bad, 'row')}"
        )
    lost = pc.sum(pc.and_(pc.equal(weight, 0), pc.not_equal(to_float64(column), 0))).as_py()
    if lost:
        raise DataError(
            f"{path}: weight column {name!r} is too small for a 32-bit float in {counted(lost, 'row')}; "
            "multiply all weights by the same number"
        )
    return weight


def _count_invalid(counts: dict[str, dict[str, int]], batch: pa.RecordBatch, numeric: Sequence[str]) -> None:
    for name in numeric:
        column = batch.column(name)
        if pa.types.is_floating(column.type) and not _is_finite(column):
            finite = pc.sum(pc.is_finite(column)).as_py() or 0
            if finite == len(column) - column.null_count:
                continue
            nan = pc.sum(pc.is_nan(column)).as_py() or 0
            entry = counts.setdefault(name, {"nan": 0, "inf": 0})
            entry["nan"] += nan
            entry["inf"] += len(column) - column.null_count - finite - nan


def _is_finite(column: pa.Array) -> bool:
    """Return whether all values are surely finite, fast, by their sum; False also if it overflows or some are null."""
    if column.null_count or column.type not in (pa.float32(), pa.float64()):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(column.to_numpy().sum()))
