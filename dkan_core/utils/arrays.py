"""Types of NumPy arrays, and arrays put together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, npt.NDArray[Any]]
"""Arrays of the same rows, by name."""

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt64 = npt.NDArray[np.uint64]


def joined_rows(parts: Sequence[Array]) -> Array:
    """Return the rows of some arrays; rows of ids are padded to as many codes as the longest one."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])
