"""Rows in memory, as scikit-learn's users hold them, to a table with the columns that Parquet files would give."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dkan_core.data.source.column_types import column_types


def is_frame(rows: Any) -> bool:
    """Tell whether ``rows`` has columns of their own types: pandas, polars, Arrow."""
    return hasattr(rows, "columns") and (hasattr(rows, "iloc") or hasattr(rows, "__arrow_c_stream__"))


def column_names(frame: Any) -> list[Any]:
    """Return what a frame calls its columns: strings, but in pandas anything."""
    return list(frame.column_names if isinstance(frame, pa.Table | pa.RecordBatch) else frame.columns)


def to_table(rows: Any, names: Sequence[str], where: str = "X") -> pa.Table:
    """Return rows as a table with columns of plain types; a column without any value has none.

    Args:
        rows: A frame, or an array (N, F).
        names: What the columns are to be called.
        where: The rows, as messages should call them.

    Raises:
        TypeError: A column holds values of several types.
    """
    try:
        table = frame_table(rows, names) if is_frame(rows) else _array_table(rows).rename_columns(list(names))
    except pa.ArrowException as error:
        # The wording is scikit-learn's own. pyarrow knows the column by its number alone.
        reason = str(error.args[0] if error.args else error)
        place = re.search(r"column (\d+) with type", str(error))
        column = f"column {names[int(place[1])]!r}: " if place else ""
        raise TypeError(
            f"{where}: {column}each column's argument must be a string or a number throughout ({reason})"
        ) from error
    return table.cast(pa.schema(list(column_types(where, table.schema).items())))


def nulls_as_numbers(table: pa.Table) -> pa.Table:
    """Return rows to train on: a column without any value counts as one of numbers.

    >>> nulls_as_numbers(pa.table({"x": pa.nulls(2)})).schema.types
    [DataType(double)]
    """
    kinds = [pa.float64() if pa.types.is_null(kind) else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.schema.names, kinds, strict=True))))


def frame_table(frame: Any, names: Sequence[str]) -> pa.Table:
    """Return a frame as a table, with the types that its columns have.

    Args:
        frame: pandas, polars or Arrow.
        names: What the columns are to be called.

    Raises:
        pa.ArrowException: A column holds values of several types.
    """
    if not hasattr(frame, "iloc"):
        return pa.table(frame).rename_columns(list(names))
    # pandas itself is not imported here: whoever holds a frame has it. Arrow wants names that are strings.
    renamed = frame.set_axis([str(index) for index in range(frame.shape[1])], axis=1)
    return pa.Table.from_pandas(renamed, preserve_index=False).rename_columns(list(names))


def _array_table(rows: np.ndarray[Any, Any]) -> pa.Table:
    # As numbers, like every other array; a frame's booleans are categories.
    if rows.dtype.kind == "b":
        rows = rows.astype(np.uint8)
    columns = [pa.array(rows[:, index], from_pandas=True) for index in range(rows.shape[1])]
    return pa.Table.from_arrays(columns, names=[str(index) for index in range(len(columns))])
