"""A safetensors file written row by row: the bytes that ``safetensors.numpy.save`` gives.

``save`` takes whole arrays and returns the whole file, which would hold two more copies of a shard in memory.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from dkan_core.data.format.layout import Layout

# The data in the file begin at a multiple of this.
HEADER_ALIGNMENT = 8


def safetensors_header(
    layout: Layout, rows: int, lengths: Mapping[str, int] = MappingProxyType({})
) -> tuple[bytes, list[str]]:
    """Return what stands before the data of a safetensors file, and the names of its arrays in the order of the data.

    Args:
        layout: Row shape and dtype of each array.
        rows: Length of each array.
        lengths: By name, of those that are of another length.
    """
    # safetensors decides the order of the arrays and the names of the types, so it writes the header of empty arrays.
    empty = save({name: np.empty((0, *shape), dtype) for name, (shape, dtype) in layout.items()})
    entries: dict[str, Any] = json.loads(empty[HEADER_ALIGNMENT:])
    end = 0
    for name, entry in entries.items():
        shape, dtype = layout[name]
        length = lengths.get(name, rows)
        start, end = end, end + length * np.dtype((dtype, shape)).itemsize
        entry |= {"shape": [length, *shape], "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, list(entries)


def chunks_in_order(
    records: npt.NDArray[Any], order: npt.NDArray[np.int64], name: str, chunk_rows: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield a field of records, some rows at a time.

    Args:
        records: Structured rows (N).
        order: Which rows to yield (N,), as indices in ``records``.
        name: The field.
        chunk_rows: Rows of what is yielded.

    Shape:
        - Output: ``(chunk_rows, ...)``, fewer rows at the end
    """
    for start in range(0, len(order), chunk_rows):
        yield np.ascontiguousarray(records[name][order[start : start + chunk_rows]])


def row_layout(record: np.dtype[Any], without: str) -> Mapping[str, tuple[tuple[int, ...], str]]:
    """Return row shape and dtype of the fields of a structured type, without one of them."""
    fields = {name: record[name] for name in record.names or () if name != without}
    return {name: (field.shape, field.base.str) for name, field in fields.items()}
