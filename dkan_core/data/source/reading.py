"""Rows of a source file, batch by batch, each column as its plain type."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.decimals import to_float64
from dkan_core.data.source.column_types import column_types, is_id_list, is_text, with_common
from dkan_core.data.source.folders import FOLDER_TEXT, add_folder_columns
from dkan_core.data.source.parquet_files import footer_digest, open_parquet
from dkan_core.data.source.row_groups import (
    has_large_groups,
    joined,
    runs_to_fetch,
    small_runs,
    whole_groups,
)
from dkan_core.data.whole_floats import integer_texts
from dkan_core.errors import DataError, UnreadableError
from dkan_core.utils.messages import first_line
from dkan_core.utils.storage.failures import readable

# Bytes of decoded numbers. Encoding holds several copies of a batch, and larger batches are no faster.
BATCH_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class OpenFile:
    """A file that is open, and what is to be read of it."""

    path: str
    parquet: pq.ParquetFile

    groups: list[int]
    """The row groups to read."""

    types: Mapping[str, pa.DataType]
    """That each column is read as."""

    folder_types: Mapping[str, str]
    """What columns in the names of folders are read as. Default: text."""

    @property
    def metadata(self) -> pq.FileMetaData:
        """Its footer."""
        return self.parquet.metadata


def open_file(
    path: str,
    groups: tuple[int, int] | None = None,
    footer: str | None = None,
    *,
    folder_types: Mapping[str, str] | None = None,
    common: Mapping[str, str] | None = None,
    size: int | None = None,
) -> OpenFile:
    """Open a file to read its rows.

    Args:
        path: The file, local or remote.
        groups: The first row group to read, and the one past the last. Default: all.
        footer: What ``footer_digest`` gave before. Default: any.
        folder_types: What columns in the names of folders are read as. Default: text.
        common: What columns are read as whose type is another in other files, as ``Sources`` has them.
        size: Its bytes, where they are known.

    Raises:
        DataError: The file cannot be read, or is another one than before.
    """
    parquet = open_parquet(path, size=size)
    if footer is not None and footer_digest(parquet) != footer:
        raise source_changed(path)
    return OpenFile(
        path=path,
        parquet=parquet,
        groups=[*range(*(groups or (0, parquet.num_row_groups)))],
        types=with_common(column_types(path, parquet.schema_arrow), common),
        folder_types=folder_types or {},
    )


def read_batches(file: OpenFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a file's rows in order, some 64 MB at a time, each as its plain type.

    Raises:
        DataError: The file is truncated or a page is damaged.
    """
    parquet, plain = file.parquet, plain_schema(file.types, columns)
    own = plain.names
    runs = small_runs(file.metadata, file.groups, plain)
    if runs is not None:
        batches, rows = whole_groups(parquet, runs, own), 0
    else:
        if has_large_groups(file.metadata, file.groups):
            parquet = open_parquet(file.path, in_pieces=True, metadata=file.metadata)
        # Enough rows that the overhead of an Arrow call is small, and few enough that progress is shown.
        rows = max(1024, min(65536, BATCH_BYTES // (8 * max(1, len(columns)))))
        # Batch by batch, because some writers put a whole file into one row group.
        batches = chain.from_iterable(
            parquet.iter_batches(batch_size=rows, columns=own, row_groups=run)
            for run in runs_to_fetch(file.metadata, file.groups)
        )
    found = iter(partial(next_batch, batches, plain, file.path), None)
    for batch in joined(found, rows):
        yield batch if len(own) == len(columns) else add_folder_columns(batch, columns, file.path, file.folder_types)


def plain_schema(types: Mapping[str, pa.DataType], columns: Sequence[str]) -> pa.Schema:
    """Return the types of some columns, as ``column_types`` does, without those in the names of folders."""
    return pa.schema([(name, types[name]) for name in columns if types[name] != FOLDER_TEXT])


def source_changed(path: str) -> DataError:
    """Describe a file that is another one than when the preparation began."""
    return DataError(f"{path}: the source changed while it was read; prepare again")


def next_batch(batches: Iterator[pa.RecordBatch], plain: pa.Schema, path: str) -> pa.RecordBatch | None:
    """Return the next batch with its columns as plain types, or None at the end.

    Raises:
        DataError: The file is truncated, or a page or a text in it is damaged.
    """
    with readable(path):
        try:
            batch = next(batches, None)
            if batch is not None and batch.schema.names != plain.names:
                batch = batch.select(plain.names)
            if batch is not None and batch.schema.types != plain.types:
                batch = _as_types(batch, plain, path)
        except (pa.ArrowException, OSError) as error:
            # Arrow's error about a damaged file has no errno; the system's error about a lost connection has one.
            kind = UnreadableError if getattr(error, "errno", None) else DataError
            # Arrow writes nulls in columns of fixed-size lists to Parquet but cannot read them back.
            fixed = "lists to be of size" in str(error)
            advice = "; write null among lists of a fixed size as lists of any size" if fixed else ""
            raise kind(f"{path}: cannot be read to the end ({first_line(error)}){advice}") from error
    for name, column in zip(plain.names, batch.columns if batch is not None else (), strict=False):
        if is_text(column.type):
            _check_text(column, name, path)
    return batch


def _as_types(batch: pa.RecordBatch, plain: pa.Schema, path: str) -> pa.RecordBatch:
    """Return columns as other types.

    Raises:
        DataError: A number in a column cannot be held by the type that it is read as.
    """
    columns = []
    for field, column in zip(plain, batch.columns, strict=True):
        is_code = pa.types.is_floating(column.type) and pa.types.is_string(field.type)
        try:
            if is_code:
                converted = integer_texts(column)
            elif pa.types.is_decimal(column.type) and pa.types.is_float64(field.type):
                converted = to_float64(column)
            else:
                converted = column.cast(field.type)
        except pa.ArrowInvalid as error:
            if is_code:
                advice = "categories are integers, strings or booleans"
            elif is_id_list(field.type):
                advice = "IDs must be below 2^63"
            else:
                advice = "write all files with one type"
            raise DataError(
                f"{path}: column {field.name!r} is {column.type} and read as {field.type}, which does not hold all of "
                f"its values ({first_line(error)}); {advice}"
            ) from error
        columns.append(converted)
    return pa.record_batch(columns, schema=plain)


def _check_text(column: pa.Array, name: str, path: str) -> None:
    """Raise DataError where a string is not UTF-8: Arrow does not check what it reads."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {name!r} holds text that is not UTF-8 ({first_line(error)})") from error
