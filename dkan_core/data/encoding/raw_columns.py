"""Columns of raw rows as an encoding takes them: numbers or texts, checked by name and type.

``where`` is what messages call the rows, and ``time`` what of a column of dates or times is meant; None for a column of
numbers. A column that is missing, occurs twice or is of another kind raises DataError.
"""

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.decimals import to_float64
from dkan_core.data.hashing import value_keys
from dkan_core.data.source.column_types import is_number, is_text, is_whole
from dkan_core.data.source.times import TimePart, in_seconds, is_duration, read_part
from dkan_core.data.whole_floats import integer_texts
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Float64

# With larger numbers, such as the largest float64 for "no limit", differences between values would be infinite.
LARGEST = 1e300

# Canonical decimal text of an integer. Other text, such as 00501, is no integer's text.
INTEGER = re.compile(r"0|-?[1-9][0-9]*")


def column_named(rows: pa.RecordBatch | pa.Table, name: str, where: str) -> pa.ChunkedArray | pa.Array:
    """Return a column of any kind."""
    indices = rows.schema.get_all_field_indices(name)
    if not indices:
        raise DataError(f"{where}: column {name!r} is missing; the model was trained with it")
    if len(indices) > 1:
        raise DataError(f"{where}: column {name!r} occurs {len(indices)} times; expected each name once")
    return rows.column(indices[0])


def numbers(rows: pa.RecordBatch | pa.Table, name: str, where: str, time: TimePart | None = None) -> Float64:
    """Return a numeric column with NaN for null, NaN and infinity; numbers beyond ``LARGEST`` are clipped to it.

    Shape:
        - Output: ``(N,)``
    """
    column = column_of_numbers(rows, name, where, time)
    values: Float64 = to_float64(column).to_numpy(zero_copy_only=False)
    if (np.abs(values) > LARGEST).any():
        values = np.where(np.isinf(values), np.nan, values).clip(-LARGEST, LARGEST)
    return values


def column_of_numbers(
    rows: pa.RecordBatch | pa.Table, name: str, where: str, time: TimePart | None = None
) -> pa.ChunkedArray | pa.Array:
    """Return a numeric column as it is, durations in seconds."""
    # Rows that were read back from prepared data hold the calendar part itself, not the time.
    if time is not None and not (name in rows.schema.names and is_number(rows.schema.field(name).type)):
        return read_part(column_named(rows, time.column, where), time, where)
    column = column_named(rows, name, where)
    if is_duration(column.type):
        return in_seconds(column)
    if not (is_number(column.type) or pa.types.is_null(column.type)):
        raise DataError(f"{where}: column {name!r} is {column.type}; the model was trained with numbers there")
    return column


def texts_of(
    column: pa.ChunkedArray | pa.Array, name: str, where: str, *, integers: bool = False
) -> pa.ChunkedArray | pa.Array:
    """Return a column of strings or booleans, or of floats without any value, as strings.

    With ``integers``, whole numbers are taken, too, in decimal digits; floats have no fraction then.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_floating(kind) and column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    if integers and pa.types.is_floating(kind):
        try:
            return integer_texts(column.cast(kind))
        except pa.ArrowInvalid as error:
            raise DataError(f"{where}: column {name!r} {error}; the model was trained with categories there") from None
    known = is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    if not (known or (integers and is_whole(kind))):
        raise DataError(f"{where}: column {name!r} is {kind}; the model was trained with categories there")
    return column if pa.types.is_string(column.type) else column.cast(kind).cast(pa.string())


def buckets_of(
    texts: pa.ChunkedArray | pa.Array, chosen_N: npt.NDArray[np.bool_], buckets: int
) -> npt.NDArray[np.int32]:
    """Return the bucket, by its hash, of each chosen text.

    Args:
        texts: Strings (N).
        chosen_N: Which of them, none of which is null.
        buckets: How many buckets there are.
    """
    chosen = texts.filter(pa.array(chosen_N))
    whole = chosen.combine_chunks() if isinstance(chosen, pa.ChunkedArray) else chosen
    return (value_keys(whole) % np.uint64(buckets)).astype(np.int32)
