"""Which row groups of a file are read at once: whole ones, several that are tiny, or only some rows of a large one."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.source.column_types import is_bytes, is_text
from dkan_core.data.source.parquet_files import READ_BYTES

# Bytes of decoded numbers. Row groups up to this size, which most writers use, are read as one batch: that takes half
# the processor time of reading them in pieces, since each piece restarts every column's decoder.
WHOLE_GROUP_BYTES = 160 << 20
# Consecutive row groups with up to this many rows in all are read as one batch: each batch has a fixed cost, and some
# writers make a row group of every few rows.
JOINED_ROWS = 4096
# Stored bytes of consecutive row groups that are fetched from a bucket at once.
RUN_BYTES = 160 << 20
# Stored bytes: a smaller row group is fetched as a whole, however long its strings are.
LARGE_GROUP_BYTES = 4 << 20
# Bytes held of each row of a whole row group, beside its columns: number, split, keys, order.
ROW_BYTES = 64


def small_runs(metadata: pq.FileMetaData, groups: Sequence[int], plain: pa.Schema) -> list[list[int]] | None:
    """Return row groups to be read at once, one or several that are tiny; None where one may be too large for that.

    None also for strings and lists, whose lengths are not known.
    """
    widths = [*map(_bits, plain.types)]
    if None in widths:
        return None
    most = WHOLE_GROUP_BYTES * 8 // max(1, sum(filter(None, widths)))
    runs: list[list[int]] = []
    held = 0
    for group in groups:
        rows = metadata.row_group(group).num_rows
        if rows > most:
            return None
        held += rows
        if runs and held <= min(most, JOINED_ROWS):
            runs[-1].append(group)
        else:
            runs.append([group])
            held = rows
    return runs


# Cached: for small files, looking at each column's type would take longer than reading the rows.
@lru_cache(maxsize=256)
def _bits(kind: pa.DataType) -> int | None:
    """Return the bits of a value; None for values of varying length."""
    if pa.types.is_null(kind):
        return 0  # a column without any value has no type
    is_long = is_text(kind) or pa.types.is_nested(kind)
    if is_long or (is_bytes(kind) and not pa.types.is_fixed_size_binary(kind)):
        return None
    width: int = (kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind).bit_width
    return width


def less_by_columns(
    metadata: pq.FileMetaData,
    groups: Iterable[int],
    at_once: pa.Schema,
    others: pa.Schema,
    *,
    row_bytes: int,
    remote: bool,
) -> bool:
    """Return whether row groups take less memory read as a whole, some columns at a time, than some rows at a time.

    Args:
        metadata: The footer.
        groups: The row groups.
        at_once: Columns that are read together, and held, in both cases.
        others: Columns that are read some at a time in the first case.
        row_bytes: What is then held of a row for these.
        remote: Whether the file is in a bucket.
    """
    widths = [*map(_bits, at_once.types)]
    if None in [*widths, *map(_bits, others.types)]:
        return False
    # As the source has them, and once more as they are used.
    row_bytes += ROW_BYTES + 2 * sum(filter(None, widths)) // 8
    names = {*at_once.names, *others.names}
    found = map(metadata.row_group, groups)
    return all(group.num_rows * row_bytes <= _bytes_in_pieces(group, names, remote) for group in found)


def _bytes_in_pieces(group: pq.RowGroupMetaData, names: Collection[str], remote: bool) -> int:
    """Return about how many bytes Arrow holds of a row group from which it reads some rows at a time."""
    held = 0
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema in names:
            # All that is fetched from a bucket stays in memory.
            held += chunk.total_compressed_size if remote else READ_BYTES
            if chunk.dictionary_page_offset is not None:
                # The dictionary, and room for a page as large as that: writers end both at 1 MB by default.
                held += 2 * (chunk.data_page_offset - chunk.dictionary_page_offset)
    return held


def has_large_groups(metadata: pq.FileMetaData, groups: Iterable[int]) -> bool:
    """Return whether a row group is too large to be fetched as a whole before its first rows are decoded."""
    return any(metadata.row_group(group).total_byte_size > LARGE_GROUP_BYTES for group in groups)


def runs_to_fetch(metadata: pq.FileMetaData, groups: Sequence[int]) -> Iterator[list[int]]:
    """Cut row groups into runs to read at once: what is fetched of one from a bucket stays in memory to its end."""
    run: list[int] = []
    held = 0
    for group in groups:
        size = metadata.row_group(group).total_byte_size
        if run and held + size > RUN_BYTES:
            yield run
            run, held = [], 0
        run.append(group)
        held += size
    if run:
        yield run


def whole_groups(parquet: pq.ParquetFile, runs: Iterable[list[int]], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of runs of row groups that are small, one batch for each."""
    for run in runs:
        yield from parquet.read_row_groups(run, columns=columns).combine_chunks().to_batches()


def joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join tiny batches up to ``rows`` rows: Arrow gives one for each row group where a column is a dictionary.

    >>> batches = [pa.record_batch({"x": [0] * length}) for length in (2, 3, 4, 9, 1)]
    >>> [batch.num_rows for batch in joined(batches, 5)]
    [5, 4, 9, 1]
    """
    held, count, rows = list[pa.RecordBatch](), 0, min(rows, JOINED_ROWS)
    for batch in batches:
        if held and count + batch.num_rows > rows:
            yield pa.concat_batches(held)
            held, count = [], 0
        if batch.num_rows < rows:
            held.append(batch)
            count += batch.num_rows
        else:
            yield batch
    if held:
        yield pa.concat_batches(held)
