"""Floats that are integers: pandas converts a column of integers to floats if some are missing."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.decimals import to_float64


def integer_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return floats as the decimal texts of integers; NaN and infinity become null.

    Raises:
        pyarrow.ArrowInvalid: One has a fraction, or is so large that floats do not tell it from its neighbours.

    >>> integer_texts(pa.array([17.0, float("nan"), None])).to_pylist()
    ['17', None, None]
    """
    floats = to_float64(column)
    floats = pc.if_else(pc.is_finite(floats), floats, pa.scalar(None, pa.float64()))
    largest = 2 ** (np.finfo(column.type.to_pandas_dtype()).nmant + 1)
    if pc.any(pc.greater(pc.abs(floats), float(largest))).as_py():
        raise pa.ArrowInvalid(f"holds numbers beyond {largest:,}, where floats are no exact integers")
    try:
        return floats.cast(pa.int64()).cast(pa.string())
    except pa.ArrowInvalid:
        raise pa.ArrowInvalid("holds numbers with a fraction") from None
