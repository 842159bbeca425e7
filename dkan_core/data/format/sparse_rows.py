"""Codes of a row that names few of many, in a shard: compressed sparse rows (CSR), two arrays for those of all rows.

``sparse_offsets`` (n + 1,) says where the codes of each row begin in ``sparse_indices``, which holds those of one row
after the other. In spill files and batches a row has room for as many codes as the longest one, 0 where it has fewer.

Shape suffixes: N rows, S codes of the longest row.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.format.blocks import Int64
from dkan_core.data.format.integrity import INDICES, OFFSETS, Field, Layout
from dkan_core.errors import DataError

SPARSE = "sparse"

ReadInto = Callable[[int, memoryview, int], None]
"""Fills a buffer with verified bytes of a shard, from an offset on."""


def stored_layout(layout: Layout) -> Layout:
    """Return row shape and dtype of the arrays in a shard: instead of ``sparse`` its two."""
    stored: dict[str, tuple[tuple[int, ...], str]] = {name: kind for name, kind in layout.items() if name != SPARSE}
    return {**stored, OFFSETS: ((), "int64"), INDICES: ((), "int32")} if SPARSE in layout else stored


def stored_arrays(
    records: npt.NDArray[Any], order: npt.NDArray[np.int64], chunk_rows: int
) -> tuple[dict[str, int], dict[str, Iterator[npt.NDArray[Any]]]]:
    """Return the lengths of the two arrays, and their content, some rows at a time.

    Args:
        records: Structured rows (N), with the field ``sparse``.
        order: Which rows to store (N,), as places in ``records``.
        chunk_rows: Rows to look at at once.
    """
    chunks = [order[start : start + chunk_rows] for start in range(0, len(order), chunk_rows)]
    counts = [np.count_nonzero(records[SPARSE][chunk], axis=1) for chunk in chunks]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)

    def indices() -> Iterator[npt.NDArray[Any]]:
        for chunk in chunks:
            codes_NS = records[SPARSE][chunk]
            yield codes_NS[codes_NS != 0]

    return {OFFSETS: len(offsets), INDICES: int(offsets[-1])}, {OFFSETS: iter([offsets]), INDICES: indices()}


class SparseRows:
    """Reads the codes of rows out of shards.

    Args:
        paths: The shards, for messages.
        starts: First row of each, and the number of rows at the end.
        fields: Where the two arrays lie in each.
        width: S.
        read: Reads of a shard.
    """

    def __init__(
        self, paths: Sequence[Path], starts: Int64, fields: Sequence[Mapping[str, Field]], width: int, read: ReadInto
    ) -> None:
        self.paths, self.starts, self.fields, self.width, self._read = paths, starts, fields, width, read

    @property
    def bytes(self) -> int:
        """Of both arrays, in all shards."""
        return sum(field.size for fields in self.fields for field in fields.values())

    def gather(self, pieces: Int64, out_NS: npt.NDArray[np.int32]) -> None:
        """Read the codes of rows.

        Args:
            pieces: Stretches of rows (first, past the last), none of which crosses a shard.
            out_NS: Gets their codes, one stretch after the other.
        """
        shards = np.searchsorted(self.starts, pieces[:, 0], side="right") - 1
        places = itertools.accumulate((pieces[:, 1] - pieces[:, 0]).tolist(), initial=0)
        for shard, (first, stop), place in zip(shards.tolist(), pieces.tolist(), places, strict=False):
            if first < stop:
                start = first - int(self.starts[shard])
                self._gather_piece(shard, start, out_NS[place : place + stop - first])

    def _gather_piece(self, shard: int, first: int, out_NS: npt.NDArray[np.int32]) -> None:
        fields = self.fields[shard]
        offsets = np.empty(len(out_NS) + 1, np.int64)
        self._read(shard, offsets.data.cast("B"), fields[OFFSETS].offset + first * offsets.itemsize)
        counts_N, ones = np.diff(offsets), fields[INDICES].size // out_NS.itemsize
        if not (counts_N.min() >= 0 and counts_N.max() <= self.width and offsets[0] >= 0 and offsets[-1] <= ones):
            raise DataError(
                f"{self.paths[shard]}: array {OFFSETS!r} does not rise by 0 to {self.width} from row {first:,} on; "
                "prepare the data again"
            )
        indices = np.empty(int(offsets[-1] - offsets[0]), np.int32)
        if len(indices):
            begin = fields[INDICES].offset + int(offsets[0]) * indices.itemsize
            self._read(shard, indices.data.cast("B"), begin)
        out_NS[:] = 0
        out_NS[np.arange(out_NS.shape[1]) < counts_N[:, None]] = indices


def stored_length(name: str, rows: int, shape: tuple[int, ...]) -> int:
    """Return how long an array has to be in a shard of so many rows; ``shape`` is what its header says."""
    if name == OFFSETS:
        return rows + 1
    return math.prod(shape) if name == INDICES else rows
