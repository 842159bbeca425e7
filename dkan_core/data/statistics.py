"""First pass: a uniform sample of the train split, and exact counts of labels, nulls, NaN and infinity.

The sample is the K rows with the smallest hash of their row number (bottom-k), so it does not depend on the
order of the files, and it holds the whole train split when that has at most K rows. Of wide data fewer rows are
kept, so that the sample stays within some 512 MB.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config import PrepareConfig
from dkan_core.data.hashing import UInt64, salted, splitmix64
from dkan_core.data.schema import Schema, SourceFile
from dkan_core.data.splits import SPLITS, read_split_batches
from dkan_core.errors import DataError

SAMPLE_ROWS = 1 << 18
MIN_SAMPLE_ROWS = 1 << 14
SAMPLE_BYTES = 512 << 20
MAX_PIECES = 256
VALUES_REMEMBERED = 1000
MAX_WEIGHT = 1e30


@dataclass
class Statistics:
    """What the first pass found."""

    sample: pa.Table
    """At most ``sample_rows`` rows of the train split, feature columns only."""

    rows: list[int]
    """Rows of each split, in the order of ``SPLITS``."""

    labels: dict[str, list[Counter[object]]]
    """For each label and split, how often each value stands there (None: null)."""

    invalid: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each numeric column that has any, the counts of "nan" and "inf" values (taken as missing)."""


def sample_rows(columns: int) -> int:
    """Return how many rows the statistics of a data set with so many feature columns are taken from.

    >>> sample_rows(20), sample_rows(768), sample_rows(10_000)
    (262144, 87381, 16384)
    """
    return max(MIN_SAMPLE_ROWS, min(SAMPLE_ROWS, SAMPLE_BYTES // (8 * columns)))


def collect_statistics(
    files: Sequence[SourceFile], schema: Schema, config: PrepareConfig, on_rows: Callable[[int], None]
) -> Statistics:
    """Read every row once.

    Args:
        files: Source files in a fixed order; row numbers count through them.
        schema: Role of each column.
        config: How rows are split; its seed decides the sample.
        on_rows: Called with the number of rows after each batch.
    """
    features = [*schema.numeric, *schema.categorical]
    sample = _BottomK(sample_rows(len(features)), salted(config.seed, "sample"))
    rows = [0] * len(SPLITS)
    labels: dict[str, list[Counter[object]]] = {name: [Counter() for _ in SPLITS] for name in schema.labels}
    invalid: dict[str, dict[str, int]] = {}
    weight = 0.0
    for batch in read_split_batches(files, schema, config, on_rows):
        for index in range(len(SPLITS)):
            mask = pa.array(batch.split == index)
            rows[index] += pc.sum(mask).as_py() or 0
            for name in schema.labels:
                _count_values(labels[name][index], batch.rows.column(name).filter(mask))
        for name in schema.labels:
            if any(len(counter) > VALUES_REMEMBERED for counter in labels[name]):
                raise _not_binary(name, labels[name], batch.path)
        if schema.weight is not None:
            weight += _train_weight(batch.rows.column(schema.weight), batch.split == 0, schema.weight, batch.path)
        _count_invalid(invalid, batch.rows, schema.numeric)
        sample.add(batch.rows.select(features), batch.row_ids, batch.split == 0)
    if schema.weight is not None and weight == 0:
        raise DataError(f"{files[0].path}: weight column {schema.weight!r} is 0 in every row of train")
    return Statistics(sample=sample.table(), rows=rows, labels=labels, invalid=invalid)


class _BottomK:
    """The K rows with the smallest hash seen so far."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.keys: UInt64 = np.empty(0, dtype=np.uint64)
        self.pieces: list[pa.Table] = []
        self.limit: np.uint64 | None = None

    def add(self, batch: pa.RecordBatch, row_ids: UInt64, eligible: npt.NDArray[np.bool_]) -> None:
        keys = splitmix64(row_ids, seed=self.seed)
        if self.limit is not None:
            eligible = eligible & (keys < self.limit)
        self.pieces.append(pa.Table.from_batches([batch]).filter(pa.array(eligible)))
        self.keys = np.concatenate([self.keys, keys[eligible]])
        # Few rows of a late batch are kept: without the second bound, pieces of a few rows would pile up.
        if len(self.keys) > self.size + self.size // 4 or len(self.pieces) > MAX_PIECES:
            self._prune()

    def _prune(self) -> None:
        smallest = np.argsort(self.keys)[: self.size]
        self.keys = self.keys[smallest]
        table = pa.concat_tables(self.pieces)
        # One column after the other: the copy made on the way is then as small as a column.
        kept = [column.combine_chunks().take(pa.array(smallest)) for column in table.columns]
        self.pieces = [pa.Table.from_arrays(kept, schema=table.schema)]
        if len(self.keys) == self.size:
            self.limit = self.keys[-1]

    def table(self) -> pa.Table:
        self._prune()
        return self.pieces[0]


def _count_values(counter: Counter[object], values: pa.Array) -> None:
    for entry in pc.value_counts(values).to_pylist():
        counter[entry["values"]] += entry["counts"]


def _train_weight(column: pa.Array, in_train: npt.NDArray[np.bool_], name: str, path: str) -> float:
    """Return the sum of the train rows' weights, after a check of all."""
    weight = column.cast(pa.float32(), safe=False)
    good = pc.and_(pc.less_equal(weight, MAX_WEIGHT), pc.greater_equal(weight, 0))
    bad = len(weight) - (pc.sum(good).as_py() or 0)
    if bad:
        raise DataError(f"{path}: weight column {name!r} must be from 0 to {MAX_WEIGHT:g}; {bad:,} rows are not")
    return float(pc.sum(weight.filter(pa.array(in_train))).as_py() or 0)


def _count_invalid(counts: dict[str, dict[str, int]], batch: pa.RecordBatch, numeric: Sequence[str]) -> None:
    for name in numeric:
        column = batch.column(name)
        if pa.types.is_floating(column.type):
            finite = pc.sum(pc.is_finite(column)).as_py() or 0
            if finite == len(column) - column.null_count:
                continue
            nan = pc.sum(pc.is_nan(column)).as_py() or 0
            entry = counts.setdefault(name, {"nan": 0, "inf": 0})
            entry["nan"] += nan
            entry["inf"] += len(column) - column.null_count - finite - nan


def check_labels(statistics: Statistics, where: str) -> None:
    """Raise DataError unless every label holds 0, 1 or null and has both classes where it must.

    One label needs both classes in every split that has rows. Of several labels, each needs both in train and
    at least one needs both in each other split.
    """
    for name, counters in statistics.labels.items():
        if any(value not in (0, 1, None) for counter in counters for value in counter):
            raise _not_binary(name, counters, where)
    for index, split in enumerate(SPLITS):
        if statistics.rows[index] == 0 and split != "test":
            raise DataError(
                f"{where}: no rows in the {split} split, of {sum(statistics.rows):,} in all; "
                "set --split, or name a --split-column"
            )
        lacking = [name for name, counters in statistics.labels.items() if not _both_classes(counters[index])]
        needed = 1 if split == "train" else len(statistics.labels)
        if statistics.rows[index] and len(lacking) >= needed:
            found = {value: count for value, count in statistics.labels[lacking[0]][index].items() if value is not None}
            counts = ", ".join(f"{value!r} {count:,} times" for value, count in found.items()) or "no measured value"
            raise DataError(f"{where}: label column {lacking[0]!r} has one class only in {split}: {counts}")


def _not_binary(name: str, counters: Sequence[Counter[object]], where: str) -> DataError:
    seen: Counter[str] = Counter()
    for counter in counters:
        for value, count in counter.items():
            seen["null" if value is None else repr(value)] += count
    counts = ", ".join(f"{value} {count:,} times" for value, count in seen.most_common(8))
    more = f" and {len(seen) - 8:,} more values" if len(seen) > 8 else ""
    return DataError(f"{where}: label column {name!r} must hold 0, 1 or null; found {counts}{more}")


def _both_classes(counter: Counter[object]) -> bool:
    return counter[0] > 0 and counter[1] > 0
