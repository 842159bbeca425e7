"""Label columns of raw Parquet: which columns hold a model's labels, and their values as 0, 1 and not measured."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.preparation.label_checks import check_binary
from dkan_core.data.source.column_types import is_number
from dkan_core.data.source.positive import value_of, with_nulls, with_positive
from dkan_core.data.source.roles import SCALAR
from dkan_core.errors import ConfigError, DataError
from dkan_core.utils.messages import counted, listed_names, spelt_alike


def label_columns(labels: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that hold a model's labels, in the order of the labels.

    Args:
        labels: Of the model.
        columns: As they were named: the labels themselves in any order, or a column for each label in their order.
            Empty: called as the labels.

    Raises:
        ConfigError: There are not as many columns as labels, or one of them is meant for two labels.
    """
    if columns and len(columns) != len(labels):
        raise ConfigError(
            f"label {', '.join(columns)}: the model has {counted(len(labels), 'label')} ({', '.join(labels)})"
        )
    if not columns or {*columns} == {*labels}:
        return tuple(labels)
    for label, column in zip(labels, columns, strict=True):
        if columns.count(column) > 1:
            raise ConfigError(f"label {column!r} is named twice; name a column for each of {', '.join(labels)}")
        if column != label and column in labels:
            raise ConfigError(
                f"label {column!r} is in the place of {label!r}; name the columns in the order of the model's labels: "
                f"{', '.join(labels)}"
            )
    return tuple(columns)


def check_label_columns(
    types: Mapping[str, pa.DataType], columns: Sequence[str], encoding: Preprocessor, path: str
) -> None:
    """Raise an error where a file lacks a label column, or the column is a feature of the model."""
    for name in columns:
        if name in encoding.columns:
            raise ConfigError(f"label {name}: is a feature of the model; name a column of labels")
        if name not in types:
            others = [column for column in types if column not in {*encoding.columns}]
            candidates = (
                f"candidates are {listed_names(others)}" if others else "every column is a feature of the model"
            )
            alike = spelt_alike(name, others)
            meant = f"did you mean {alike!r}? If not, " if alike is not None else ""
            raise DataError(f"{path}: label column {name!r} does not exist; {meant}name it with --label: {candidates}")
        if not any(fits(types[name]) for fits in SCALAR):
            raise DataError(f"{path}: label column {name!r} is {types[name]}; expected 0, 1 or null")


def positive_of_columns(positive: Mapping[str, str], labels: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the value that counts as 1 by column instead of by label; ``columns`` hold the ``labels`` in order."""
    return {column: positive[label] for label, column in zip(labels, columns, strict=True) if label in positive}


def positive_in(schema: pa.Schema, positive: Mapping[str, str]) -> dict[str, str]:
    """Return which columns of labels have a value that counts as 1.

    Columns of numbers or booleans that cannot hold the value, such as "yes", hold 0 and 1 instead.

    Args:
        schema: Of rows.
        positive: By column, the value of training.
    """
    return {name: text for name, text in positive.items() if _may_hold(schema.field(name).type, text)}


def _may_hold(kind: pa.DataType, text: str) -> bool:
    """Return whether a column of numbers or booleans can hold the value of a text; a column of any other type may."""
    if not (is_number(kind) or pa.types.is_boolean(kind)):
        return True
    try:
        value_of(text, kind)
    except pa.ArrowException:
        return False
    return True


def with_binary_labels(
    rows: pa.RecordBatch, columns: Sequence[str], positive: Mapping[str, str], where: str
) -> pa.RecordBatch:
    """Return rows whose labels are 0, 1 and null, as those that a model was trained with.

    Args:
        rows: Rows of the source.
        columns: Columns of labels.
        positive: By column, the value that counts as 1; none where it holds 0 and 1.
        where: The file, as messages should call it.

    Raises:
        DataError: A column holds something else.
    """
    rows = with_positive(with_nulls(rows, columns), positive_in(rows.schema, positive), where)
    for name in columns:
        advice = "the model was trained with 0 and 1: convert these values, or name another column"
        check_binary(name, rows.column(name), where, advice=advice)
    return rows


def stored_labels(batch: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return columns of 0, 1 and null as labels, 255 for null.

    Shape:
        - Output: ``(N, L)``
    """
    labels = [batch.column(name).cast(pa.uint8()).fill_null(NOT_MEASURED) for name in names]
    return np.stack([label.to_numpy(zero_copy_only=False) for label in labels], axis=1)
