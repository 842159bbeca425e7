"""Columns in the names of folders, as Hive, Spark and DuckDB write them: ``year=2024/month=1/part-0.parquet``.

Texts in names are read as the wanted type: for new data that of the training data, else a type that fits all files.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow as pa

from dkan_core.errors import DataError

# What Hive and Spark write for a missing value.
MISSING = "__HIVE_DEFAULT_PARTITION__"
# Never the type of a column in a file, as dictionary columns are read as the type of their values.
FOLDER_TEXT = pa.dictionary(pa.int32(), pa.string())
"""The type given to a column in folder names until it is known what type to read it as."""

# Text such as 007 is a key, not a number; 03 is a month, day or hour.
INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})|0\d", re.ASCII)
# Only the ISO form that both Python and Arrow read, so not 2024-W01-1.
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def folder_values(path: str) -> dict[str, str | None]:
    """Return the columns in the names of a file's folders; None is a missing value.

    >>> folder_values("raw/year=2024/city=New%20York/a.parquet")
    {'year': '2024', 'city': 'New York'}
    """
    pairs = (part.split("=", 1) for part in PurePosixPath(path).parts[:-1] if "=" in part)
    return {unquote(name): None if value == MISSING else unquote(value) for name, value in pairs if name}


def infer_type(texts: Iterable[str | None]) -> str:
    """Return what all texts can be read as: "int64", "date32" or else "string".

    >>> infer_type(["2024", None]), infer_type(["01", "12"]), infer_type(["2024-05-31"]), infer_type(["10001", "07030"])
    ('int64', 'int64', 'date32', 'string')
    """
    known = [text for text in texts if text is not None]
    if known and all(INTEGER.fullmatch(text) for text in known):
        return "int64"
    with suppress(ValueError):
        if known and all(DATE.fullmatch(text) and datetime.date.fromisoformat(text) for text in known):
            return "date32"
    return "string"


def with_whole_numbers(wanted: Mapping[str, str], paths: Iterable[str]) -> dict[str, str]:
    """Return types to read names of folders as, 64-bit integers instead of floats where no file has a fraction.

    Integers stay exact: float64 cannot hold all keys of 17 digits.

    >>> with_whole_numbers({"year": "double", "share": "double"}, ["year=2024/share=0.5/a.parquet"])
    {'year': 'int64', 'share': 'double'}
    """
    texts: dict[str, set[str | None]] = {}
    for path in paths:
        for name, text in folder_values(path).items():
            texts.setdefault(name, set()).add(text)
    whole = {name for name, found in texts.items() if infer_type(found - {None} or {"0"}) == "int64"}
    return {name: "int64" if kind == "double" and name in whole else kind for name, kind in wanted.items()}


def add_folder_columns(
    batch: pa.RecordBatch, columns: Sequence[str], path: str, wanted: Mapping[str, str]
) -> pa.RecordBatch:
    """Return some columns of a batch, of the file or of the names of its folders.

    Args:
        batch: Rows of the file.
        columns: Names of the columns to return; those that the batch lacks are in names of folders.
        path: The file.
        wanted: Types, by name, to read names of folders as. Default: text.

    Raises:
        DataError: A name cannot be read so.
    """
    texts, added = folder_values(path), {}
    for name in columns:
        if name not in batch.schema.names:
            kind = pa.type_for_alias(wanted.get(name, "string"))
            try:
                value = pa.scalar(texts[name], pa.string()).cast(kind)
            except pa.ArrowInvalid:
                raise DataError(f"{path}: folder {name}={texts[name]}: expected {kind} there") from None
            added[name] = pa.repeat(value, batch.num_rows)
    return pa.record_batch([added[name] if name in added else batch.column(name) for name in columns], names=[*columns])
