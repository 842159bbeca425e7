"""Rows of a file, some columns at a time.

A few columns are still in the processor's cache when they are encoded, and the next ones are decoded into the same
memory. Whole row groups take twice the processor time, most of it to clear new memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dkan_core.data.source.folders import add_folder_columns
from dkan_core.data.source.reading import OpenFile, next_batch, plain_schema, read_batches
from dkan_core.data.source.row_groups import less_by_columns, small_runs, whole_groups
from dkan_core.utils.resources import available_cores
from dkan_core.utils.storage.paths import is_remote

# Bytes of decoded numbers per core. Smaller blocks are no faster; larger ones leave the cache.
BLOCK_BYTES = 4 << 20
# From a bucket, each block is a request or more.
REMOTE_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class RowBlocks:
    """Consecutive rows, N of them."""

    count: int
    """N."""

    rows: pa.RecordBatch
    """The columns that are wanted at once."""

    blocks: Callable[[], Iterator[pa.RecordBatch]]
    """Yields the other columns, some at a time."""


def read_blocks(
    file: OpenFile, columns: Sequence[str], others: Sequence[str], row_bytes: int | None = None
) -> Iterator[RowBlocks]:
    """Yield a file's rows in order, at most some 160 MB at a time, or whole row groups where these take less memory.

    Args:
        file: The file.
        columns: What to read at once.
        others: What to read when it is asked for.
        row_bytes: What the caller holds of a row of the other columns when all were read. Default: these columns.

    Raises:
        DataError: The file is truncated or a page is damaged.
    """
    runs = _runs(file, columns, others, row_bytes)
    if runs is None:
        for batch in read_batches(file, [*dict.fromkeys([*columns, *others])]):
            yield RowBlocks(batch.num_rows, batch.select(columns), partial(iter, [batch.select(others)]))
        return
    for run in runs:
        count = sum(file.metadata.row_group(group).num_rows for group in run)
        read = partial(_read_groups, file, run, count)
        if count:
            yield RowBlocks(count, read(columns), partial(map, read, _in_blocks(file, others, count)))


def _runs(
    file: OpenFile, columns: Sequence[str], others: Sequence[str], row_bytes: int | None
) -> list[list[int]] | None:
    """Return row groups to be read some columns at a time; None where they are better read some rows at a time."""
    metadata, groups, remote = file.metadata, file.groups, is_remote(file.path)
    runs = small_runs(metadata, groups, plain_schema(file.types, [*dict.fromkeys([*columns, *others])]))
    if runs is not None:
        # Each read from a bucket is a request, so fewer and longer reads are faster.
        return None if remote else runs
    schemas = plain_schema(file.types, columns), plain_schema(file.types, others)
    if row_bytes is None or not less_by_columns(metadata, groups, *schemas, row_bytes=row_bytes, remote=remote):
        return None
    return [[group] for group in groups]


def _in_blocks(file: OpenFile, names: Sequence[str], rows: int) -> list[Sequence[str]]:
    """Cut columns into blocks of about equal bytes."""
    kinds = [kind for kind in plain_schema(file.types, names).types if not pa.types.is_null(kind)]
    widest = max((kind.bit_width for kind in kinds), default=8)
    most = max(BLOCK_BYTES * available_cores(), REMOTE_BLOCK_BYTES if is_remote(file.path) else 0)
    size = max(1, most * 8 // (rows * widest))
    return [names[start : start + size] for start in range(0, len(names), size)]


def _read_groups(file: OpenFile, run: list[int], rows: int, names: Sequence[str]) -> pa.RecordBatch:
    """Read some columns of row groups."""
    plain = plain_schema(file.types, names)
    batch = next_batch(whole_groups(file.parquet, [run], plain.names), plain, file.path) if len(plain) else None
    if batch is None:
        # A batch without columns has no row count, so it gets a column of nulls.
        batch = pa.record_batch([pa.nulls(rows)], names=[""])
    if len(plain) == len(names) > 0:
        return batch.select(names)
    return add_folder_columns(batch, names, file.path, file.folder_types)


def side_by_side(blocks: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the columns of all blocks as one batch."""
    columns = {name: block.column(name) for block in blocks for name in block.schema.names}
    return pa.record_batch(columns)
