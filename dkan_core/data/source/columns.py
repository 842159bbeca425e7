"""The columns of the source files: read from every footer, checked, and read batch by batch."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from dkan_core.data.decimals import to_float64
from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.column_types import (
    column_types,
    common_type,
    constant_values,
    is_id_list,
    is_number,
    is_text,
    is_whole,
    value_types,
    with_common,
    without_values,
)
from dkan_core.data.source.files import find_partitioned
from dkan_core.data.source.folders import FOLDER_TEXT, add_folder_columns, folder_values, infer_type
from dkan_core.data.source.footer_checks import check_footer
from dkan_core.data.source.parquet_files import footer_digest, open_in_order, open_parquet, open_stamped
from dkan_core.data.source.row_groups import has_large_groups, runs_to_fetch, small_runs, whole_groups
from dkan_core.data.whole_floats import integer_texts
from dkan_core.errors import DataError, UnreadableError
from dkan_core.utils import schemas
from dkan_core.utils.hints import drop_advice, first_line
from dkan_core.utils.storage.failures import readable

# Of decoded numbers. A batch is held several times over while it is encoded, and more rows at once are no faster.
BATCH_BYTES = 64 << 20

# What pandas calls an index without a name when it writes it: numbers of rows, which say nothing of other rows.
UNNAMED_INDEX = re.compile(r"__index_level_\d+__")

logger = logging.getLogger(__name__)


class SourceFile(schemas.Schema):
    """A source Parquet file as its footer and file system describe it."""

    path: str
    """Path or URI, without credentials."""

    rows: Annotated[int, Field(ge=0, lt=1 << 48)]
    """Number of rows."""

    bytes: Annotated[int, Field(ge=0, lt=1 << 56)]
    """Size in bytes."""

    modified: str
    """Modification stamp of the file system."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The source files, and what is in them."""

    files: list[SourceFile]
    """Sorted by path."""

    types: dict[str, pa.DataType]
    """Of each column, in the order of the first file."""

    common: dict[str, str]
    """The columns whose type differs between files, with an alias of the type that holds all."""

    footers: list["Footer"]
    """Of each file."""

    partial: set[str]
    """The columns that only some files have, none of which is used."""

    empty: set[str]
    """Columns that hold nothing but nulls, as far as the statistics in all files say so."""

    constant: dict[str, frozenset[object]]
    """The labels that hold one value in all rows, nulls aside, with it, as far as the statistics say so."""


@dataclass(frozen=True, kw_only=True)
class Footer:
    """Facts from a Parquet file's footer, other than its columns."""

    groups: list[int]
    """Rows of each row group."""

    digest: str
    """From ``footer_digest``."""


def read_sources(sources: Sequence[str], requirements: ColumnRequirements | None = None) -> Sources:
    """Read every footer and check that all files have the same columns, of types that one type can hold.

    Args:
        sources: Files and folders.
        requirements: What columns are for; those that are not used are not compared. Default: all may be features.

    Raises:
        DataError: A file is missing, broken or empty of columns, or differs from the first in a column.
    """
    requirements = requirements or ColumnRequirements()
    files, footers = list[SourceFile](), list[Footer]()
    reference, reference_path, differing = dict[str, pa.DataType](), "", set[str]()
    unnamed, empty_texts, partial, empty = set[str](), set[str](), set[str](), set[str]()
    constant = dict.fromkeys(requirements.labels, frozenset[object]())
    found = find_partitioned(sources)
    opened = open_in_order(open_stamped, [*found], next(iter(found)))
    for (path, folders), (parquet, size, modified) in zip(found.items(), opened, strict=True):
        types, texts = _types_of(path, parquet, folders, requirements)
        empty_texts |= texts
        unnamed.update(name for name in types if UNNAMED_INDEX.fullmatch(name))
        types = {name: kind for name, kind in types.items() if name not in unnamed}
        if not reference_path:
            reference, reference_path = types, path
        _check_names(path, types, reference_path, reference, requirements)
        partial |= {*types} ^ {*reference}
        reference |= {name: kind for name, kind in types.items() if name not in reference}
        here = [name for name, kind in types.items() if kind != reference[name] and requirements.uses(name)]
        differing.update(here)
        types |= dict.fromkeys(_empty_floats([path], types, reference, here), pa.null())
        reference |= dict.fromkeys(_empty_floats((file.path for file in files), reference, types, here), pa.null())
        for name in here:
            reference[name] = common_type(
                name,
                types[name],
                reference[name],
                path,
                reference_path,
                zone=requirements.zone(name),
                is_label=name in requirements.labels,
            )
        metadata = parquet.metadata
        check_footer(path, metadata, requirements.roles)
        empty = without_values(metadata, empty if files else {*types})
        constant = constant_values(metadata, constant)
        files.append(SourceFile(path=path, rows=metadata.num_rows, bytes=size, modified=modified))
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        footers.append(Footer(groups=groups, digest=footer_digest(parquet)))
    # Single files without rows are fine: a job with many writers often leaves some.
    if sum(file.rows for file in files) == 0:
        raise DataError(f"{files[0].path}: no rows in any source file")
    in_folders = [name for name, kind in reference.items() if kind == FOLDER_TEXT]
    reference |= _folder_types(list(found), in_folders, requirements.categories)
    for name in sorted(unnamed):
        logger.info("column %r is the index of a pandas frame, without a name, and is left out", name)
    for name in sorted(differing):
        logger.info("column %r differs in type between files, and is read as %s", name, reference[name])
    common = {name: str(reference[name]) for name in reference if name in differing | empty_texts}
    return Sources(
        files=files, types=reference, common=common, footers=footers, partial=partial, empty=empty, constant=constant
    )


def _types_of(
    path: str, parquet: pq.ParquetFile, folders: Sequence[str], requirements: ColumnRequirements
) -> tuple[dict[str, pa.DataType], set[str]]:
    """Return the types of a file's columns, and the names of those that are read as text though they are not.

    These are categories that are whole numbers, or have no values.
    """
    types = column_types(path, parquet.schema_arrow)
    expected = {**requirements.types, **dict.fromkeys(requirements.categories, pa.string())}
    texts = {name for name, kind in value_types(path, parquet, expected).items() if kind != types[name]}
    for name in sorted({*requirements.categories} & {*types} - texts):
        if is_whole(types[name]) or pa.types.is_floating(types[name]):
            texts.add(name)
        elif is_number(types[name]):
            raise DataError(
                f"{path}: column {name!r} is {types[name]}, but is read as categories; expected integers, "
                "strings or booleans"
            )
    types |= dict.fromkeys(texts, pa.string())
    # Above a source, folders have only what is known to be wanted: elsewhere their names may mean anything.
    read = {*folders, *requirements.types, *requirements.needed}
    return {name: kind for name, kind in types.items() if kind != FOLDER_TEXT or name in read}, texts


def _empty_floats(
    paths: Iterable[str], ours: Mapping[str, pa.DataType], theirs: Mapping[str, pa.DataType], names: Sequence[str]
) -> set[str]:
    """Return the columns of floats that hold no value in any of some files, and texts in others.

    Frames make numbers of a column that is empty.
    """
    found = {name for name in names if pa.types.is_floating(ours[name]) and is_text(theirs[name])}
    for path in paths if found else ():
        found = without_values(open_parquet(path).metadata, found)
    return found


def _folder_types(paths: Sequence[str], names: Sequence[str], categories: Collection[str]) -> dict[str, pa.DataType]:
    """Return what columns in the names of folders are read as, and log it."""
    values = [folder_values(path) for path in paths]
    types = {name: pa.type_for_alias(infer_type(each[name] for each in values if name in each)) for name in names}
    types |= {name: pa.string() for name, kind in types.items() if name in categories and is_whole(kind)}
    for name, kind in types.items():
        logger.info("column %r is in the names of folders, and read as %s", name, kind)
    return types


def _check_names(
    path: str,
    types: dict[str, pa.DataType],
    first: str,
    expected: dict[str, pa.DataType],
    requirements: ColumnRequirements,
) -> None:
    """Raise DataError where one of two files lacks a column of the other."""
    for lacking, having, columns in ((path, first, expected), (first, path, types)):
        for name in columns:
            if (name in types and name in expected) or not requirements.uses(name):
                continue
            advice = "" if name in requirements.needed else f", or {drop_advice([name])}"
            raise DataError(
                f"{lacking}: column {name!r} is missing; {having} has it: write it to all files, with nulls where it "
                f"has no values{advice}"
            )


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
) -> OpenFile:
    """Open a file to read its rows.

    Args:
        path: The file, local or remote.
        groups: The first row group to read, and the one past the last. Default: all.
        footer: What ``footer_digest`` gave before. Default: any.
        folder_types: What columns in the names of folders are read as. Default: text.
        common: What columns are read as whose type is another in other files, as ``Sources`` has them.

    Raises:
        DataError: The file cannot be read, or is another one than before.
    """
    parquet = open_parquet(path)
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
        batches = whole_groups(parquet, runs, own)
    else:
        if has_large_groups(file.metadata, file.groups):
            parquet = open_parquet(file.path, in_pieces=True, metadata=file.metadata)
        # At least so many rows that a call of Arrow costs less than its work, at most so many that progress is seen.
        rows = max(1024, min(65536, BATCH_BYTES // (8 * max(1, len(columns)))))
        # Batch by batch, as a row group of some writers is as large as the file.
        batches = chain.from_iterable(
            parquet.iter_batches(batch_size=rows, columns=own, row_groups=run)
            for run in runs_to_fetch(file.metadata, file.groups)
        )
    while (batch := next_batch(batches, plain, file.path)) is not None:
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
            # Of a damaged file, Arrow's error has no number; of a connection that was lost, the system's has.
            kind = UnreadableError if getattr(error, "errno", None) else DataError
            # Arrow writes null among lists of a fixed size to Parquet, but does not read it.
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
    """Raise DataError where a string is not UTF-8: writers are trusted to see to it, and Arrow does not look."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {name!r} holds text that is not UTF-8 ({first_line(error)})") from error
