"""Numbers of any type as float64. Decimals become the nearest float64; Arrow's own cast may be off by one bit.

With that bit off, 0.3 stored as a decimal would differ from 0.3 as a float or as a decimal with more digits.

Shape suffixes: N rows.
"""

import numpy as np
import pyarrow as pa

# Up to here, whole numbers and powers of ten are float64 to the bit, so that one division rounds once.
MAX_WHOLE, MAX_SCALE = 1 << 53, 22


def to_float64(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column of numbers as float64; nulls stay null.

    >>> from decimal import Decimal
    >>> to_float64(pa.array([Decimal("0.3"), None])).to_pylist()
    [0.3, None]
    """
    if not pa.types.is_decimal(column.type):
        return column if pa.types.is_float64(column.type) else column.cast(pa.float64(), safe=False)
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([to_float64(chunk) for chunk in column.chunks], pa.float64())
    divided = _divided(column)
    # Arrow parses text to the nearest float64, and the text of a decimal has all its digits.
    return column.cast(pa.string()).cast(pa.float64()) if divided is None else divided


def _divided(column: pa.Array) -> pa.Array | None:
    """Return decimals as whole numbers divided by a power of ten; None where these are too large to be exact."""
    kind = column.type
    if not (pa.types.is_decimal128(kind) and 0 <= kind.scale <= MAX_SCALE):
        return None
    halves_N2 = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    low_N, high_N = halves_N2.T
    missing_N = np.asarray(column.is_null())
    large_N = (high_N != low_N >> 63) | (low_N > MAX_WHOLE) | (low_N < -MAX_WHOLE)
    if (large_N & ~missing_N).any():
        return None
    return pa.array(low_N / 10.0**kind.scale, mask=missing_N)
