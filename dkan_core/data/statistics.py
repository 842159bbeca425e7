"""First pass: a uniform sample of the train split, and exact counts of labels, nulls, NaN and infinity.

The sample is the K rows with the smallest hash of their row number (bottom-k), so it does not depend on the
order of the files, and it holds the whole train split when that has at most K rows.
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
from dkan_core.data.schema import Schema, SourceFile, read_batches
from dkan_core.data.splits import SPLITS, assign_splits
from dkan_core.errors import DataError

SAMPLE_ROWS = 1 << 18
VALUES_REMEMBERED = 1000


@dataclass
class Statistics:
    """What the first pass found."""

    sample: pa.Table
    """At most ``SAMPLE_ROWS`` rows of the train split, feature columns only."""

    rows: list[int]
    """Rows of each split, in the order of ``SPLITS``."""

    labels: dict[str, list[Counter[object]]]
    """For each label and split, how often each value stands there (None: null)."""

    invalid: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each numeric column that has any, the counts of "nan" and "inf" values (taken as missing)."""


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
    sample = _BottomK(SAMPLE_ROWS, salted(config.seed, "sample"))
    rows = [0] * len(SPLITS)
    labels: dict[str, list[Counter[object]]] = {name: [Counter() for _ in SPLITS] for name in schema.labels}
    invalid: dict[str, dict[str, int]] = {}
    first = 0
    for file in files:
        for batch in read_batches(file.path, schema.columns, on_rows):
            row_ids = np.arange(first, first + batch.num_rows, dtype=np.uint64)
            first += batch.num_rows
            split = assign_splits(batch, row_ids, config, file.path)
            for index in range(len(SPLITS)):
                mask = pa.array(split == index)
                rows[index] += pc.sum(mask).as_py() or 0
                for name in schema.labels:
                    _count_values(labels[name][index], batch.column(name).filter(mask))
            _count_invalid(invalid, batch, schema.numeric)
            sample.add(batch.select(features), row_ids, split == 0)
    return Statistics(sample=sample.table(), rows=rows, labels=labels, invalid=invalid)


class _BottomK:
    """The K rows with the smallest hash seen so far."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.keys: UInt64 = np.empty(0, dtype=np.uint64)
        self.kept: pa.Table | None = None

    def add(self, batch: pa.RecordBatch, row_ids: UInt64, eligible: npt.NDArray[np.bool_]) -> None:
        keys = splitmix64(row_ids, seed=self.seed)
        if len(self.keys) >= self.size:
            eligible = eligible & (keys < self.keys.max())
        rows = pa.Table.from_batches([batch]).filter(pa.array(eligible))
        self.keys = np.concatenate([self.keys, keys[eligible]])
        self.kept = rows if self.kept is None else pa.concat_tables([self.kept, rows])
        if len(self.keys) > 2 * self.size:
            self._prune()

    def _prune(self) -> None:
        assert self.kept is not None
        smallest = np.argsort(self.keys)[: self.size]
        self.keys, self.kept = self.keys[smallest], self.kept.take(pa.array(smallest)).combine_chunks()

    def table(self) -> pa.Table:
        self._prune()
        assert self.kept is not None
        return self.kept


def _count_values(counter: Counter[object], values: pa.Array) -> None:
    for entry in pc.value_counts(values).to_pylist():
        if entry["values"] in counter or len(counter) < VALUES_REMEMBERED:
            counter[entry["values"]] += entry["counts"]


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
        seen: Counter[object] = sum(counters, Counter())
        if any(value not in (0, 1, None) for value in seen):
            counts = ", ".join(f"{value!r} {count:,} times" for value, count in seen.most_common(8))
            raise DataError(f"{where}: label column {name!r} must hold 0, 1 or null; found {counts}")
    for index, split in enumerate(SPLITS):
        if statistics.rows[index] == 0 and split != "test":
            raise DataError(f"{where}: no rows in the {split} split")
        lacking = [name for name, counters in statistics.labels.items() if not _both_classes(counters[index])]
        needed = 1 if split == "train" else len(statistics.labels)
        if statistics.rows[index] and len(lacking) >= needed:
            found = {value: count for value, count in statistics.labels[lacking[0]][index].items() if value is not None}
            counts = ", ".join(f"{value!r} {count:,} times" for value, count in found.items()) or "no measured value"
            raise DataError(f"{where}: label column {lacking[0]!r} has one class only in {split}: {counts}")


def _both_classes(counter: Counter[object]) -> bool:
    return counter[0] > 0 and counter[1] > 0
