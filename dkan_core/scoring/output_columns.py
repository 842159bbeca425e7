"""The columns of scores: the probabilities of each label, and source columns that are copied beside them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.preparation.label_columns import check_label_columns
from dkan_core.data.source.column_types import column_types, common_type, value_types
from dkan_core.data.source.folders import FOLDER_TEXT, with_whole_numbers
from dkan_core.data.source.parquet_files import open_in_order, open_parquet
from dkan_core.errors import DataError
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.messages import first_line, hint


def probability_column(label: str) -> str:
    """Return the name of the column with a label's probabilities."""
    return f"{label}_probability"


def probability_fields(labels: Iterable[str]) -> list[pa.Field]:
    """Return name and type of the column with each label's probabilities."""
    return [pa.field(probability_column(label), pa.float32()) for label in labels]


def output_batch(
    batch: pa.RecordBatch, found_NL: npt.NDArray[np.float32], columns: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    """Return columns that are passed through and probabilities, in the schema of ``check_sources``.

    A column of null type, as in a file without values in it, gets its type in the other files.

    Raises:
        DataError: The type of all files does not hold a value of a column to pass through.
    """
    passed = [_cast(batch.column(name), schema.field(name)) for name in columns]
    return pa.record_batch([*passed, *map(pa.array, found_NL.T)], schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {field.name!r} is {column.type} in one file, and {field.type}, which does not hold all of its "
            f"values, in all ({first_line(error)}); write all files with one type"
        ) from error


def check_no_clash(columns: Iterable[str], added: Iterable[str], clash: str) -> None:
    """Raise DataError where a column of the output has the name of one that is added to it.

    Args:
        columns: Names of the output's columns so far.
        added: Names of those to add.
        clash: What the message says is wrong.
    """
    if names := sorted({*columns} & {*added}):
        raise DataError(f"column {names[0]!r} cannot be copied to the output: {clash}")


def copied_folder_types(saved: SavedModel, paths: Sequence[str]) -> dict[str, str]:
    """Return types of the columns that are in the names of folders, for copies of them beside scores.

    Args:
        saved: The model.
        paths: All files that are scored: their scores have columns of the same types.
    """
    return with_whole_numbers(saved.preprocessor.folder_types, paths)


def check_sources(
    saved: SavedModel,
    paths: Sequence[str],
    columns: Sequence[str],
    labels: Sequence[str] = (),
    folder_types: Mapping[str, str] | None = None,
) -> tuple[pa.Schema, list[int]]:
    """Check every file's columns; return the schema of the output and the rows of each file.

    Args:
        saved: The model.
        paths: The files.
        columns: Columns to pass through.
        labels: Columns to compare the scores with.
        folder_types: As for ``scored_batches``.

    Raises:
        DataError: A file lacks a column, or no type holds the values of a column to pass through in all files.
    """
    predicted = probability_fields(saved.config.labels)
    check_no_clash(columns, [field.name for field in predicted], "the prediction has that name")
    passed: dict[str, pa.DataType] = {}
    rows = []
    for path, parquet in zip(paths, open_in_order(open_parquet, paths, paths[0]), strict=True):
        types = column_types(path, parquet.schema_arrow)
        for name in columns:
            if name not in types:
                raise DataError(
                    f"{path}: column {name!r} does not exist, so it cannot be copied to the output "
                    f"(--column, in Kubeflow columns); {hint(name, types, [*types], cutoff=0.6)}"
                )
            passed[name] = _passed_type(name, types[name], passed.get(name, pa.null()), path, paths[0])
        check_features(saved.preprocessor, value_types(path, parquet, saved.preprocessor.source_types), path)
        check_label_columns(types, labels, saved.preprocessor, path)
        rows.append(parquet.metadata.num_rows)
    read_as = saved.preprocessor.folder_types if folder_types is None else folder_types
    passed |= {
        name: pa.type_for_alias(read_as.get(name, "string")) for name, kind in passed.items() if kind == FOLDER_TEXT
    }
    return pa.schema([*passed.items(), *predicted]), rows


def _passed_type(name: str, kind: pa.DataType, earlier: pa.DataType, path: str, first: str) -> pa.DataType:
    """Return a type for a column to pass through that holds its values in a file and in earlier files."""
    if earlier == pa.null():
        return kind
    if kind in (earlier, pa.null()):
        return earlier
    if any(map(pa.types.is_decimal, (earlier, kind))):
        raise DataError(f"{path}: column {name!r} is {kind}; in earlier files it is {earlier}")
    return common_type(name, kind, earlier, path, first, zone="UTC")
