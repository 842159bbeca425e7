"""In-memory rows, as users of scikit-learn hold them, as a table with the columns that Parquet files would give."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.source.column_types import column_types, is_id_list

TOO_LARGE = "holds integers that do not fit in 64 bits with a sign; make numbers floats, and take IDs modulo 2**63"


def is_frame(rows: Any) -> bool:
    """Return whether ``rows`` has columns of their own types: pandas, polars, Arrow."""
    # ``columns`` last: a lazy frame of polars warns when it is accessed.
    return (hasattr(rows, "iloc") or hasattr(rows, "__arrow_c_stream__")) and hasattr(rows, "columns")


def column_names(frame: Any) -> list[Any]:
    """Return the column names of a frame: strings, but any object in pandas."""
    return list(frame.column_names if isinstance(frame, pa.Table | pa.RecordBatch) else frame.columns)


def to_table(rows: Any, names: Sequence[str], where: str = "X") -> pa.Table:
    """Return rows as a table with columns of plain types; a column without any value has none.

    Raises:
        TypeError: A column holds values of several types, or of one that is no plain type.
        ValueError: A text or name holds half of a surrogate pair, which UTF-8 cannot.
    """
    try:
        table = frame_table(rows, names, where) if is_frame(rows) else _array_table(rows, names, where)
    except pa.ArrowException as error:
        raise TypeError(f"{where}: a column {_mixed(error)}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: text that is no valid Unicode ({error})") from error
    return cast_columns(table, column_types(where, table.schema), where)


def _mixed(error: Exception) -> str:
    # Keeps scikit-learn's wording.
    reason = error.args[0] if error.args else error
    what = "holds other objects" if "did not recognize" in str(reason) else "mixes types"
    return f"{what}: each argument must be a string or a number, and of one kind in the whole column ({reason})"


def cast_columns(table: pa.Table, types: Mapping[str, pa.DataType], where: str) -> pa.Table:
    """Return a table whose columns have other types.

    Raises:
        TypeError: A column cannot be cast; ``where`` is what the message calls the rows.
    """
    return pa.table({name: _cast(table[name], kind, name, where) for name, kind in types.items()})


def _cast(column: pa.ChunkedArray, kind: pa.DataType, name: str, where: str) -> pa.ChunkedArray:
    # polars exports Categorical and Enum as dictionaries of string views, which Arrow cannot decode.
    if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
        column = column.cast(pa.dictionary(column.type.index_type, pa.large_string(), column.type.ordered))
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        if "interval" in str(kind):
            hint = "holds intervals, as of pandas.cut; make them text with .astype(str)"
            raise TypeError(f"{where}: column {name!r} {hint}") from error
        if is_id_list(column.type):
            raise TypeError(f"{where}: column {name!r} {TOO_LARGE}") from error
        raise TypeError(f"{where}: column {name!r} is {column.type}; expected numbers or text ({error})") from error


def without_empty_types(table: pa.Table) -> pa.Table:
    """Return rows to score, where a column without any value has the null type: frames make floats of empty categories.

    >>> without_empty_types(pa.table({"city": pa.nulls(2, pa.float64()), "zip": [float("nan"), None]})).schema.types
    [DataType(null), DataType(null)]
    """
    return pa.table(
        {
            name: pa.nulls(len(table)) if _is_empty(column) else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    )


def _is_empty(column: pa.ChunkedArray) -> bool:
    # Arrow and polars tell NaN from null; pandas does not.
    return bool(pc.all(pc.is_null(column, nan_is_null=True), min_count=0).as_py())


def nulls_as_numbers(table: pa.Table) -> pa.Table:
    """Return rows to train on: a column without any value counts as one of numbers.

    >>> nulls_as_numbers(pa.table({"x": pa.nulls(2)})).schema.types
    [DataType(double)]
    """
    kinds = [pa.float64() if pa.types.is_null(kind) else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.schema.names, kinds, strict=True))))


def frame_table(frame: Any, names: Sequence[str], where: str) -> pa.Table:
    """Return a frame of pandas, polars or Arrow as a table, with the types that its columns have.

    Raises:
        TypeError: A column holds values of several types, is sparse, or has a type that Arrow does not know.
    """
    if not hasattr(frame, "iloc"):
        # For its object columns, polars would hand Arrow memory addresses.
        kinds = zip(names, getattr(frame, "dtypes", []), strict=False)
        objects = [name for name, kind in kinds if str(kind) == "Object"]
        if objects:
            raise TypeError(f"{where}: column {objects[0]!r} holds objects; expected numbers or text")
        try:
            return pa.table(frame).rename_columns(list(names))
        except pa.ArrowException as error:
            raise TypeError(f"{where}: {_unreadable(frame)}cannot be read ({error})") from error
    columns = [_array(frame.iloc[:, index], name, where) for index, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=list(names))


def _unreadable(frame: Any) -> str:
    """Return the beginning of a message that names the first column that Arrow cannot read."""
    for name in column_names(frame):
        try:
            pa.table(frame.select([name]))
        except pa.ArrowException:
            return f"column {name!r} "
    return ""


def _array_table(rows: np.ndarray[Any, Any], names: Sequence[str], where: str) -> pa.Table:
    # Booleans of an array are numbers, like all its values; in a frame they are categories.
    if rows.dtype.kind == "b":
        rows = rows.astype(np.uint8)
    elif rows.dtype.kind == "f" and rows.dtype.itemsize > np.dtype(np.float64).itemsize:
        rows = rows.astype(np.float64)  # Arrow has no wider floats
    columns = [_array(rows[:, index], name, where) for index, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=list(names))


def _array(values: Any, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of pandas or NumPy. pandas is not imported here: a caller with pandas objects has imported it."""
    if hasattr(values, "sparse"):
        raise TypeError(
            f"{where}: column {name!r} is sparse; make it dense with .sparse.to_dense(), or give fit a scipy matrix"
        )
    if isinstance(values, np.ndarray) and not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError as error:
        raise TypeError(f"{where}: column {name!r} {TOO_LARGE}") from error
    except pa.ArrowException as error:
        raise TypeError(f"{where}: column {name!r} {_mixed(error)}") from error
