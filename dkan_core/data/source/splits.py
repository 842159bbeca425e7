"""Which split each row belongs to: by a column, by time, or by the hash of a group, of its number or of its content."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config.prepare import SPLITS, PrepareConfig
from dkan_core.data.hashing import content_keys, splitmix64
from dkan_core.data.source.blocks import read_blocks
from dkan_core.data.source.files import AT_ONCE, stamps
from dkan_core.data.source.groups import group_keys
from dkan_core.data.source.partition import Fragment, open_fragments
from dkan_core.data.source.positive import with_nulls, with_positive
from dkan_core.data.source.reading import source_changed
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.data.source.sources import SourceFile
from dkan_core.data.source.time_split import TimeBounds, time_keys
from dkan_core.errors import DataError
from dkan_core.utils.arrays import UInt64
from dkan_core.utils.messages import counted


@dataclass(frozen=True)
class SplitBatch:
    """Consecutive rows of a source file, N of them.

    Shape:
        - row_ids: ``(N,)``, counted through all files; split: ``(N,)``, the index in ``SPLITS``
    """

    path: str
    rows: pa.RecordBatch
    """All columns but the features, and possibly these; labels are 0, 1 and null."""

    source: pa.RecordBatch
    """The same columns with the labels of the source."""

    row_ids: UInt64
    split: npt.NDArray[np.int8]
    features: Callable[[], Iterator[pa.RecordBatch]]
    """Yields the features, some columns at a time."""


def read_split_batches(
    fragments: Sequence[Fragment],
    roles: ColumnRoles,
    config: PrepareConfig,
    on_rows: Callable[[int], None],
    bounds: TimeBounds | None,
    row_bytes: int | None = None,
) -> Iterator[SplitBatch]:
    """Yield every row once, in the order of the fragments, with its number and its split.

    Args:
        fragments: What to read, with the numbers of its rows.
        roles: Which columns to read.
        config: How rows are split.
        on_rows: Called with the number of rows after each batch.
        bounds: Where valid and test begin, of a split by time.
        row_bytes: What the caller holds of a row when it has gone through all features. Default: the features.
    """
    by_content = config.splits_at_random and config.split_by == "content"
    at_once = roles.columns if by_content else roles.others
    read = list[SourceFile]()
    for fragment, file in zip(fragments, open_fragments(fragments, roles), strict=True):
        first = fragment.first
        for batch in read_blocks(file, at_once, () if by_content else roles.features, row_bytes):
            row_ids = np.arange(first, first + batch.count, dtype=np.uint64)
            first += batch.count
            split = assign_splits(batch.rows, row_ids, config, fragment.path, bounds)
            features = partial(iter, [batch.rows.select(roles.features)]) if by_content else batch.blocks
            source = with_nulls(batch.rows, roles.labels)
            labelled = with_positive(source, roles.positive, fragment.path)
            yield SplitBatch(fragment.path, labelled, source, row_ids, split, features)
            on_rows(batch.count)
        if fragment.file is not None:
            read.append(fragment.file)
        if len(read) == AT_ONCE:
            _check_unchanged(read)
            read.clear()
    _check_unchanged(read)


def _check_unchanged(files: Sequence[SourceFile]) -> None:
    """Raise DataError where a file is another one than when the preparation began.

    In both passes: if one changed in between, the manifest would not describe the rows written.
    """
    for file, found in zip(files, stamps([file.path for file in files]), strict=True):
        if found != (file.bytes, file.modified):
            raise source_changed(file.path)


def assign_splits(
    batch: pa.RecordBatch, row_ids: UInt64, config: PrepareConfig, path: str, bounds: TimeBounds | None = None
) -> npt.NDArray[np.int8]:
    """Return the index in ``SPLITS`` of each row.

    Args:
        batch: The rows (N).
        row_ids: Their numbers (N,), counted through all files.
        config: How rows are split.
        path: The file, for messages.
        bounds: Where valid and test begin, of a split by time.

    Shape:
        - Output: ``(N,)``

    Raises:
        DataError: A group or a time is null, or the split column holds another value than train, valid and test.
    """
    if config.split_column is not None:
        return _by_column(batch.column(config.split_column), config.split_column, path)
    if config.split_by_time is not None:
        assert bounds is not None, "the bounds are found before rows are split"
        return bounds.split_of(time_keys(batch.column(config.split_by_time), config.split_by_time, path))
    keys = row_ids
    if config.group is not None:
        keys = group_keys(batch, config.group, path)
    elif config.split_by == "content":
        # Labels and weights are left out, so that a row stays in its split when these are updated.
        features = [name for name in batch.schema.names if name not in (*config.label, config.weight)]
        keys = content_keys(batch.select(features))
    return split_of_keys(keys, config)


def split_of_keys(keys: UInt64, config: PrepareConfig) -> npt.NDArray[np.int8]:
    """Return the index in ``SPLITS`` of each row, by the hash of its key.

    Args:
        keys: Keys to hash (N,): numbers of rows, or keys of their groups or contents.
        config: The percentages, and the seed of the hash.

    Shape:
        - Output: ``(N,)``
    """
    percent = config.split_percent
    # Buckets of the greatest common divisor of the percentages: 70/10/20 uses hash % 10, which is easy to reproduce in
    # another program.
    unit = math.gcd(*percent)
    edges = np.cumsum(percent)[:2] // unit
    bucket = splitmix64(keys, seed=config.seed) % np.uint64(100 // unit)
    return np.searchsorted(edges, bucket.astype(np.int64), side="right").astype(np.int8)


def _by_column(column: pa.Array, name: str, path: str) -> npt.NDArray[np.int8]:
    index = pc.index_in(column.cast(pa.string()), value_set=pa.array(SPLITS))
    if index.null_count:
        wrong = pc.value_counts(column.filter(pc.is_null(index))).to_pylist()[:5]
        seen = ", ".join(f"{entry['values']!r} ({counted(entry['counts'], 'row')})" for entry in wrong)
        raise DataError(f"{path}: split column {name!r} must hold train, valid or test; found {seen}")
    return np.asarray(index.to_numpy()).astype(np.int8)
