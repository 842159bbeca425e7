"""Which row groups of a file are read at once: whole ones, several that are tiny, or only some rows of a large one."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.source.column_types import is_bytes, is_text, is_uuid

# Of decoded numbers: row groups up to here, which are those of most writers, are read as one batch. That takes half the
# processor time of reading them in pieces, since each piece starts every column's decoder again.
WHOLE_GROUP_BYTES = 160 << 20
# Row groups that together have no more rows are read as one batch: each batch has a cost besides that of its rows, and
# some writers have a row group for every few rows.
JOINED_ROWS = 4096
# Of consecutive row groups in a file, as it has them: what is fetched from a bucket at once.
RUN_BYTES = 160 << 20


def small_runs(metadata: pq.FileMetaData, groups: Sequence[int], plain: pa.Schema) -> list[list[int]] | None:
    """Return row groups to be read at once, one or several that are tiny; None where one may be too large for that.

    Of strings and lists, it is not known how long they are.
    """
    # A column without any value has no type, and no width.
    kinds = [kind.storage_type if is_uuid(kind) else kind for kind in plain.types if not pa.types.is_null(kind)]
    if any(is_text(kind) or pa.types.is_nested(kind) or _has_no_width(kind) for kind in kinds):
        return None
    most = WHOLE_GROUP_BYTES * 8 // max(1, sum(kind.bit_width for kind in kinds))
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


def _has_no_width(kind: pa.DataType) -> bool:
    return is_bytes(kind) and not pa.types.is_fixed_size_binary(kind)


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
