"""The steps of a preparation, whether one process takes them or many pods do.

A step works on the rows of some fragments; what comes out of all of them does not depend on how the source was cut.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.bulk import BulkEncoder
from dkan_core.data.encoding.column_hints import column_warnings
from dkan_core.data.encoding.extending import extended_encoding, with_counts
from dkan_core.data.encoding.fitting import fit_preprocessor, full_vocabularies
from dkan_core.data.encoding.histograms import hashed_shares
from dkan_core.data.encoding.preprocessor import UNSEEN, Preprocessor
from dkan_core.data.encoding.sparse import left_out_shares
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.format.layout import array_layout
from dkan_core.data.format.manifest import FORMAT_VERSION, SPARSE_VERSION, PreparedData
from dkan_core.data.format.shard_writer import KEY, Shard, ShardWriter, record_type
from dkan_core.data.format.split_info import SplitInfo
from dkan_core.data.hashing import salted, splitmix64
from dkan_core.data.preparation.label_checks import check_counts
from dkan_core.data.preparation.label_columns import stored_labels
from dkan_core.data.preparation.label_values import log_positive
from dkan_core.data.preparation.statistics import Counts, Statistics, collect_statistics, sample_limit
from dkan_core.data.preparation.task import PreparationTask
from dkan_core.data.source.groups import group_numbers
from dkan_core.data.source.partition import Fragment
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.data.source.split_hints import split_warnings
from dkan_core.data.source.splits import SplitBatch, read_split_batches
from dkan_core.errors import DataError
from dkan_core.utils.arrays import UInt64
from dkan_core.utils.messages import counted, few_rows, listed_counts

logger = logging.getLogger(__name__)


def survey_rows(task: PreparationTask, fragments: Sequence[Fragment], on_rows: Callable[[int], None]) -> Statistics:
    """Count and sample the rows of some or all fragments; ``on_rows`` is called with their number after each batch."""
    limit = sample_limit(task.rows, task.roles, task.config)
    values = ValueCounts(*task.counted_columns)
    return collect_statistics(fragments, task.roles, task.config, on_rows, task.bounds, limit, values)


def fit(task: PreparationTask, statistics: Statistics) -> Preprocessor:
    """Check what was counted and choose the encoding, or count these rows for the one that is to be taken.

    Raises:
        DataError: A label lacks a class, a split has no rows, or a feature is useless.
    """
    counts = statistics.counts
    check_counts(counts, task.roles, task.where)
    log_labels(counts, task.roles)
    log_invalid(counts)
    encoding = _fit_columns(task, statistics)
    for name, share in left_out_shares(statistics.sample.rows, encoding.sparse, task.where).items():
        if share:
            logger.info("column %r: %.2f%% of the IDs have no code of their own", name, 100 * share)
    return with_room(encoding, counts)


def log_labels(counts: Counts, roles: ColumnRoles) -> None:
    """Log which labels are not measured in some rows, and of those that are not 0 and 1 which values count as what."""
    nulls = {name: sum(each[None] for each in counters) for name, counters in counts.labels.items()}
    if found := {name: rows for name, rows in nulls.items() if rows}:
        logger.info("not measured in %s: %s", counted(len(found), "label"), listed_counts(found))
    for name, value in roles.positive.items():
        ones, zeros = (sum(each[key] for each in counts.labels[name]) for key in (1, 0))
        log_positive(name, value, ones, zeros, counts.others[name])


def log_invalid(counts: Counts) -> None:
    """Log which columns hold numbers that are taken as missing."""
    for level, kind, values in ((logging.INFO, "nan", "NaN"), (logging.WARNING, "inf", "infinite values")):
        if found := {name: invalid[kind] for name, invalid in counts.invalid.items() if invalid[kind]}:
            where = f"{counted(len(found), 'column')}: {listed_counts(found)}"
            logger.log(level, "%s treated as missing in %s", values, where)


def with_room(encoding: Preprocessor, counts: Counts) -> Preprocessor:
    """Return an encoding of rows as long as those that were counted, and as it was made for."""
    row_codes = max(sum(counts.longest.values()), encoding.row_codes)
    return encoding.model_copy(update={"row_codes": row_codes}) if encoding.sparse else encoding


def _fit_columns(task: PreparationTask, statistics: Statistics) -> Preprocessor:
    sample = statistics.sample.rows
    known = [] if task.encoding is None else task.encoding.columns
    if task.encoding is not None and {*task.roles.features} <= {*known}:
        return with_counts(task.encoding, sample, task.where)
    roles = task.roles
    numeric, times, categorical, sparse = (
        [name for name in names if name not in known]
        for names in (roles.numeric, roles.times, roles.categorical, roles.sparse)
    )
    fitted = fit_preprocessor(
        sample,
        numeric,
        categorical,
        task.config.numeric_dtype,
        task.where,
        times=times,
        sparse=sparse,
        max_categories=task.config.max_categories,
        value_counts=statistics.value_counts.tables(),
    )
    hints = column_warnings(sample, [*numeric, *categorical], task.config.categorical)
    for text in [*hints, *full_vocabularies(fitted)]:
        logger.warning("%s", text)
    if task.encoding is None:
        return fitted
    return extended_encoding(with_counts(task.encoding, sample, task.where), fitted)


def record_of(preprocessor: Preprocessor, task: PreparationTask) -> np.dtype[Any]:
    """Return the type of a row in spill files."""
    roles = task.roles
    weighted = roles.weight is not None
    return record_type(array_layout(preprocessor, len(roles.labels), weighted=weighted, grouped=task.grouped))


def present_splits(counts: Counts) -> list[str]:
    """Return the splits that have rows."""
    return [split for split, rows in zip(SPLITS, counts.rows, strict=True) if rows]


def spill_rows(
    folder: Path,
    task: PreparationTask,
    fragments: Sequence[Fragment],
    preprocessor: Preprocessor,
    counts: Counts,
    on_rows: Callable[[int], None],
) -> tuple[dict[str, ShardWriter], dict[str, int]]:
    """Encode rows and append each to the spill file of its shard.

    Args:
        folder: Gets a folder of spill files for each split that has rows.
        task: What is prepared.
        fragments: The rows.
        preprocessor: Their encoding.
        counts: Of all rows, not of the fragments alone.
        on_rows: Called with the number of rows after each batch.

    Returns:
        What holds the rows of each split; and the rows of each category column whose value the task's own encoding does
        not know, empty where the encoding was fitted.
    """
    record = record_of(preprocessor, task)
    writers = {
        split: ShardWriter(folder / split, counts.rows[SPLITS.index(split)], record) for split in present_splits(counts)
    }
    encoder = BulkEncoder(preprocessor)
    # Of its own, so that the position of a row in the shards does not follow from what decided its split.
    shuffle_seed = salted(task.config.seed, "shuffle")
    unseen = Counter[str]()
    total_shards = sum(writer.count for writer in writers.values())
    room = np.empty(0, record)
    # The codes by column, and the records.
    row_bytes = 2 * record.itemsize if encoder.is_native else None
    for batch in read_split_batches(fragments, task.roles, task.config, on_rows, task.bounds, row_bytes):
        keys = splitmix64(batch.row_ids, seed=shuffle_seed)
        # Of a type so narrow that numpy sorts it by digits.
        bucket: npt.NDArray[Any] = np.zeros(len(keys), np.uint16 if total_shards < 1 << 16 else np.int64)
        first = 0
        for split, writer in writers.items():
            rows = np.flatnonzero(batch.split == SPLITS.index(split))
            bucket[rows] = first + writer.shard_of(keys[rows])
            first += writer.count
        order = np.argsort(bucket, kind="stable")
        if len(room) < len(keys):
            room = np.empty(len(keys), record)
        records = room[: len(keys)]
        _encode_records(batch, keys, order, encoder, task, records)
        if task.encoding is not None:
            unseen.update(_count_unseen(records, preprocessor))
        by_shard = np.bincount(bucket, minlength=total_shards)
        for writer in writers.values():
            own = int(by_shard[: writer.count].sum())
            writer.append(records[:own], by_shard[: writer.count])
            records, by_shard = records[own:], by_shard[writer.count :]
    return writers, dict(unseen)


def _encode_records(
    batch: SplitBatch,
    keys: UInt64,
    order: npt.NDArray[np.int64],
    encoder: BulkEncoder,
    task: PreparationTask,
    records: npt.NDArray[Any],
) -> None:
    """Write rows as records, in the order of ``order``."""
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order))
    encoder.encode(batch.features(), batch.path, positions, records)
    records[KEY] = keys[order]
    records["labels"] = stored_labels(batch.rows, task.roles.labels)[order]
    if task.roles.weight is not None:
        records["weight"] = _weight_values(batch.rows, task.roles.weight)[order]
    if task.grouped:
        records["group"] = group_numbers(batch.rows, task.config, task.bounds, batch.path)[order]


def _count_unseen(records: npt.NDArray[Any], preprocessor: Preprocessor) -> dict[str, int]:
    """Return how many rows of each category column hold a value that the encoding does not know."""
    return {
        feature.name: int(np.count_nonzero(records["categorical"][:, index] == UNSEEN))
        for index, feature in enumerate(preprocessor.coded)
        if feature.kind == "category"
    }


def log_unseen(unseen: Mapping[str, int], rows: int) -> None:
    """Log for each category column what share of the rows holds a value that the encoding does not know."""
    for name, count in unseen.items():
        if count:
            logger.info(
                "column %r: %.2f%% of the rows (%s) hold a value that the encoding does not know",
                name,
                100 * count / rows,
                f"{count:,}",
            )


def _weight_values(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.float32]:
    """Return a column of weights as they are stored.

    Shape:
        - Output: ``(N,)``
    """
    weight: npt.NDArray[np.float32] = batch.column(name).cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    return weight


def build_manifest(
    task: PreparationTask, preprocessor: Preprocessor, counts: Counts, shards: dict[str, list[Shard]]
) -> PreparedData:
    """Return the manifest of what was prepared.

    Args:
        task: What was prepared.
        preprocessor: Its encoding.
        counts: Of all rows.
        shards: What was written for each split that has rows.

    Raises:
        DataError: Other rows were written than were counted.
    """
    return PreparedData(
        preprocessor=preprocessor,
        format_version=SPARSE_VERSION if preprocessor.sparse else FORMAT_VERSION,
        labels=list(task.config.label),
        weight=task.config.weight,
        splits=written_splits(task, counts, shards),
        split_rule=task.split_rule,
        split_hints=dict(task.hints),
        seed=task.config.seed,
        invalid=counts.invalid,
        sources=task.sources,
        max_categories=task.config.max_categories,
        positive=task.roles.positive,
        hashed=hashed_shares(preprocessor),
        grouped=task.grouped,
        encoding_from=None if task.encoding is None else task.encoding.digest,
    )


def written_splits(task: PreparationTask, counts: Counts, shards: dict[str, list[Shard]]) -> dict[str, SplitInfo]:
    """Return the splits that have rows, as the manifest lists them; the arguments are those of ``build_manifest``.

    Raises:
        DataError: Other rows were written than were counted.
    """
    splits = {}
    for index, split in enumerate(SPLITS):
        if rows := counts.rows[index]:
            check_unchanged(task.files[0].path, split, rows, sum(shard.rows for shard in shards[split]))
            splits[split] = SplitInfo(rows=rows, classes=counts.classes(index), shards=shards[split])
    return splits


def log_prepared(out: str | Path, prepared: PreparedData) -> None:
    """Log how many rows each split has."""
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in prepared.splits.items())
    logger.info("wrote %s: %s rows", out, rows)
    for text in [*split_warnings(prepared.split_hints), *_few_rows(prepared)]:
        logger.warning("%s", text)


def _few_rows(prepared: PreparedData) -> list[str]:
    """Return for which labels valid has so few rows of a class that what is chosen on it is chance."""
    counts = {label: min(each["0"], each["1"]) for label, each in prepared.splits["valid"].classes.items()}
    few = few_rows(counts)
    if not few:
        return []
    return [
        f"valid has few rows of the rarer class ({few}): what is chosen there is partly chance; a larger share "
        "for it helps (--split)"
    ]


def check_unchanged(path: str, split: str, counted: int, written: int) -> None:
    """Raise DataError where a split's rows are not as many as were counted at first."""
    if written != counted:
        raise DataError(f"{path}: the source changed: {split} had {counted:,} rows, then {written:,}")
