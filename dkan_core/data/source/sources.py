"""The source files and their columns: every footer is read, and types that differ between files are made one."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.column_types import (
    column_types,
    common_type,
    constant_values,
    is_number,
    is_text,
    is_whole,
    value_types,
    without_values,
)
from dkan_core.data.source.files import find_partitioned
from dkan_core.data.source.folders import FOLDER_TEXT, folder_values, infer_type
from dkan_core.data.source.footer_checks import check_footer
from dkan_core.data.source.parquet_files import footer_digest, open_in_order, open_parquet, open_stamped
from dkan_core.errors import DataError
from dkan_core.utils import schemas
from dkan_core.utils.messages import drop_advice, spelt_alike

# pandas writes an unnamed index under this name: row numbers, which say nothing about other rows.
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
class Footer:
    """Facts from a Parquet file's footer, other than its columns."""

    groups: list[int]
    """Rows of each row group."""

    digest: str
    """From ``footer_digest``."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The source files, and what is in them."""

    files: list[SourceFile]
    """Sorted by path."""

    types: dict[str, pa.DataType]
    """Of each column, in the order of the first file."""

    common: dict[str, str]
    """The columns whose type differs between files, with an alias of the type that holds all."""

    footers: list[Footer]
    """Of each file."""

    partial: set[str]
    """Columns that only some files have; none of them is used."""

    empty: set[str]
    """Columns that hold nothing but nulls, as far as the statistics in all files say so."""

    constant: dict[str, frozenset[object]]
    """By label that has a single value in all rows, nulls aside, that value, as far as the statistics say."""

    @property
    def folders(self) -> dict[str, str]:
        """The columns in the names of folders, with an alias of the type that they are read as."""
        return {name: str(self.types[name]) for name in folder_values(self.files[0].path) if name in self.types}


def read_sources(sources: Sequence[str], requirements: ColumnRequirements) -> Sources:
    """Read every footer and check that all files have the same columns, of types that one type can hold.

    Args:
        sources: Files and folders.
        requirements: What columns are for; those that are not used are not compared.

    Raises:
        DataError: A file is missing, broken or empty of columns, or differs from the first in a column.
    """
    files, footers, columns = list[SourceFile](), list[Footer](), _Columns(requirements)
    found = find_partitioned(sources)
    opened = open_in_order(open_stamped, [*found], next(iter(found)))
    for (path, folders), (parquet, size, modified) in zip(found.items(), opened, strict=True):
        columns.add(path, parquet, folders)
        metadata = parquet.metadata
        files.append(SourceFile(path=path, rows=metadata.num_rows, bytes=size, modified=modified))
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        footers.append(Footer(groups=groups, digest=footer_digest(parquet)))
    # Some files may be empty: jobs with many writers often leave such files.
    if sum(file.rows for file in files) == 0:
        raise DataError(f"{files[0].path}: no rows in any source file")
    in_folders = [name for name, kind in columns.types.items() if kind == FOLDER_TEXT]
    types = columns.types | _folder_types(columns.paths, in_folders, requirements.categories)
    for name in sorted(columns.unnamed):
        logger.info("column %r is the index of a pandas frame, without a name, and is left out", name)
    for name in sorted(columns.differing):
        logger.info("column %r differs in type between files, and is read as %s", name, types[name])
    return Sources(
        files=files,
        types=types,
        common={name: str(types[name]) for name in types if name in columns.differing | columns.texts},
        footers=footers,
        partial=columns.partial,
        empty=columns.empty,
        constant=columns.constant,
    )


class _Columns:
    """The columns of the files so far, each of a type that holds its values in all of them.

    Args:
        requirements: What columns are for.
    """

    def __init__(self, requirements: ColumnRequirements) -> None:
        self.requirements = requirements
        self.paths: list[str] = []
        self.types: dict[str, pa.DataType] = {}
        self.differing = set[str]()
        """Those whose type differs between files."""
        self.texts = set[str]()
        """Those that are read as text though they are none."""
        self.unnamed, self.partial, self.empty = set[str](), set[str](), set[str]()
        self.constant = dict.fromkeys(requirements.labels, frozenset[object]())

    def add(self, path: str, parquet: pq.ParquetFile, folders: Sequence[str]) -> None:
        """Compare the columns of a file with those of the earlier ones.

        Raises:
            DataError: It lacks a column, or one of theirs has a type that does not go with its own.
        """
        types, texts = _types_of(path, parquet, folders, self.requirements)
        self.texts |= texts
        self.unnamed.update(filter(UNNAMED_INDEX.fullmatch, types))
        types = {name: kind for name, kind in types.items() if name not in self.unnamed}
        if self.paths:
            _check_names(path, types, self.paths[0], self.types, self.requirements)
            self.partial |= {*types} ^ {*self.types}
            self._make_common(path, types)
        else:
            self.types, self.empty = {**types}, {*types}
        check_footer(path, parquet.metadata, self.requirements.roles)
        self.empty = without_values(parquet.metadata, self.empty)
        self.constant = constant_values(parquet.metadata, self.constant)
        self.paths.append(path)

    def _make_common(self, path: str, types: dict[str, pa.DataType]) -> None:
        """Give columns whose type is another in a file one that holds its values as well."""
        for name, kind in types.items():
            self.types.setdefault(name, kind)
        here = [name for name, kind in types.items() if kind != self.types[name] and self.requirements.uses(name)]
        self.differing.update(here)
        types |= dict.fromkeys(_empty_floats([path], types, self.types, here), pa.null())
        self.types |= dict.fromkeys(_empty_floats(self.paths, self.types, types, here), pa.null())
        for name in here:
            self.types[name] = common_type(
                name,
                types[name],
                self.types[name],
                path,
                self.paths[0],
                zone=self.requirements.zone(name),
                is_label=name in self.requirements.labels,
                is_feature=name not in self.requirements.needed,
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
    # Folders above a source may have any names, so only columns that are known to be wanted are read from them.
    read = {*folders, *requirements.types, *requirements.needed}
    return {name: kind for name, kind in types.items() if kind != FOLDER_TEXT or name in read}, texts


def _empty_floats(
    paths: Sequence[str], ours: Mapping[str, pa.DataType], theirs: Mapping[str, pa.DataType], names: Sequence[str]
) -> set[str]:
    """Return the columns of floats that hold no value in any of some files, and texts in others.

    Frames write a text column without any value as floats.
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
    for lacking, having, columns, others in ((path, first, expected, types), (first, path, types, expected)):
        for name in columns:
            if (name in types and name in expected) or not requirements.uses(name):
                continue
            alike = spelt_alike(name, [other for other in others if other not in columns])
            renamed = "" if alike is None else f"rename {alike!r}, if it is that; or "
            advice = "" if name in requirements.needed else f", or {drop_advice([name])}"
            raise DataError(
                f"{lacking}: column {name!r} is missing; {having} has it: {renamed}write it to all files, with nulls "
                f"where it has no values{advice}"
            )
