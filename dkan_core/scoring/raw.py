"""Scoring of raw Parquet, batch by batch, and the columns of the output."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.preparation.label_columns import check_label_columns
from dkan_core.data.source.column_types import column_types, common_type, value_types
from dkan_core.data.source.columns import open_file, read_batches
from dkan_core.data.source.folders import FOLDER_TEXT, with_whole_numbers
from dkan_core.data.source.parquet_files import open_in_order, open_parquet
from dkan_core.errors import DataError
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import check_probabilities, score
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.hints import first_line, hint

TRAINED_WITH = "the model was trained with"


def probability_column(label: str) -> str:
    """Return what the column of a label's probability is called, beside the label itself."""
    return f"{label}_probability"


def scored_batches(
    saved: SavedModel,
    path: str,
    columns: Sequence[str],
    device: torch.device,
    on_arrays: Callable[[Arrays], object] = lambda _: None,
    folder_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
    """Yield the rows of a raw Parquet file in order, with the probability of each label.

    Args:
        saved: The model, its module on ``device``.
        path: The file.
        columns: What to read in addition to the model's own columns.
        device: Where to compute.
        on_arrays: Called with the rows of each batch as the model reads them.
        folder_types: What columns in the names of folders are read as, from ``copied_folder_types``. Default: what the
            model takes them for.

    Shape:
        - Output: N rows, ``(N, L)``
    """
    needed = list(dict.fromkeys([*saved.preprocessor.columns, *columns]))
    row, model = 0, saved.module.for_scoring()
    folder_types = saved.preprocessor.folder_types if folder_types is None else folder_types
    for batch in read_batches(open_file(path, folder_types=folder_types), needed):
        arrays = saved.preprocessor.transform(batch, path)
        on_arrays(arrays)
        found_NL = score(model, arrays, device)
        check_probabilities(found_NL, saved.config.labels, path, row)
        row += len(batch)
        yield batch, found_NL


def output_batch(
    batch: pa.RecordBatch, found_NL: npt.NDArray[np.float32], columns: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    """Return columns that are passed through and probabilities, as ``output_schema`` has them.

    A column without a type, as of a file that has no values in it, has that of the other files.

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
    """Return what columns in the names of folders are read as, where they are copied beside scores.

    Args:
        saved: The model.
        paths: All files that are scored, so that their scores have columns of the same types.
    """
    return with_whole_numbers(saved.preprocessor.folder_types, paths)


def output_schema(
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
    predicted = [probability_column(label) for label in saved.config.labels]
    check_no_clash(columns, predicted, "the prediction has that name")
    passed: dict[str, pa.DataType] = {}
    rows = []
    for path, parquet in zip(paths, open_in_order(open_parquet, paths, paths[0]), strict=True):
        types = column_types(path, parquet.schema_arrow)
        for name in columns:
            if name not in types:
                raise DataError(
                    f"{path}: column {name!r} does not exist, so it cannot be copied to the output (--column); "
                    f"{hint(name, types, [*types], cutoff=0.6)}"
                )
            passed[name] = _passed_type(name, types[name], passed.get(name, pa.null()), path, paths[0])
        check_features(
            saved.preprocessor, value_types(path, parquet, saved.preprocessor.source_types), path, because=TRAINED_WITH
        )
        check_label_columns(types, labels, saved.preprocessor, path)
        rows.append(parquet.metadata.num_rows)
    read_as = saved.preprocessor.folder_types if folder_types is None else folder_types
    passed |= {
        name: pa.type_for_alias(read_as.get(name, "string")) for name, kind in passed.items() if kind == FOLDER_TEXT
    }
    return pa.schema([*passed.items(), *((name, pa.float32()) for name in predicted)]), rows


def _passed_type(name: str, kind: pa.DataType, earlier: pa.DataType, path: str, first: str) -> pa.DataType:
    """Return the type that holds a column to pass through as it is in a file and in earlier ones."""
    if earlier == pa.null() or kind in (earlier, pa.null()):
        return kind if earlier == pa.null() else earlier
    if any(map(pa.types.is_decimal, (earlier, kind))):
        raise DataError(f"{path}: column {name!r} is {kind}; in earlier files it is {earlier}")
    return common_type(name, kind, earlier, path, first, zone="UTC")
