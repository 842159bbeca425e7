"""Sparse codes in a shard, as compressed sparse rows (CSR): two arrays for the codes of all rows.

``sparse_offsets`` (n + 1,) says where the codes of each row begin in ``sparse_indices``, which holds the codes row
after row. In spill files and batches, rows are padded with 0 to the length of the longest one.

Shape suffixes: N rows, S codes of the longest row.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.format.layout import INDICES, OFFSETS, SPARSE, Field
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Int64

Require = Callable[[Int64, Int64, Int64], None]
"""Verifies ranges of bytes, given the shard of each, its first byte and the one past its last."""

ReadInto = Callable[[int, memoryview, int], None]
"""Fills a buffer with bytes of a shard that were verified, from an offset on."""


def stored_arrays(
    records: npt.NDArray[Any], order: npt.NDArray[np.int64], chunk_rows: int
) -> tuple[dict[str, int], dict[str, Iterator[npt.NDArray[Any]]]]:
    """Return the lengths of the two arrays, and their content, some rows at a time.

    Args:
        records: Structured rows (N), with the field ``sparse``.
        order: Which rows to store (N,), as indices in ``records``.
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
        require: Verifies what is read next.
        read: Reads of a shard.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        starts: Int64,
        fields: Sequence[Mapping[str, Field]],
        width: int,
        require: Require,
        read: ReadInto,
    ) -> None:
        self.paths, self.starts, self.fields, self.width = paths, starts, fields, width
        self._require, self._read = require, read

    @property
    def bytes(self) -> int:
        """Of both arrays, in all shards."""
        return sum(field.size for fields in self.fields for field in fields.values())

    def gather(self, pieces: Int64, out_NS: npt.NDArray[np.int32]) -> None:
        """Read the codes of rows.

        Args:
            pieces: Ranges of rows (first, past the last), none of which crosses a shard.
            out_NS: Gets their codes, one range after the other.
        """
        pieces = pieces[pieces[:, 0] < pieces[:, 1]]
        shards = np.searchsorted(self.starts, pieces[:, 0], side="right") - 1
        rows = pieces - self.starts[shards, None]
        offsets = self._ranges(OFFSETS, shards, rows + np.array([0, 1]))
        for shard, first, of_piece in zip(shards.tolist(), rows[:, 0].tolist(), offsets, strict=True):
            self._check(shard, first, of_piece)
        ends = np.array([(of_piece[0], of_piece[-1]) for of_piece in offsets], np.int64).reshape(-1, 2)
        offset = 0
        for of_piece, codes in zip(offsets, self._ranges(INDICES, shards, ends), strict=True):
            codes_NS = out_NS[offset : offset + len(of_piece) - 1]
            codes_NS[:] = 0
            codes_NS[np.arange(self.width) < np.diff(of_piece)[:, None]] = codes
            offset += len(codes_NS)

    def _ranges(self, name: str, shards: Int64, extents: Int64) -> list[npt.NDArray[Any]]:
        """Read ranges of an array (first value, past the last), after verifying all their blocks at once.

        Shape:
            - Input: ``(E,)``, the shard of each, and ``(E, 2)``
        """
        dtype = self.fields[0][name].dtype
        begin = np.array([fields[name].offset for fields in self.fields])[shards, None] + extents * dtype.itemsize
        some = begin[:, 0] < begin[:, 1]
        self._require(shards[some], begin[some, 0], begin[some, 1])
        values = [np.empty(count, dtype) for count in np.diff(extents)[:, 0].tolist()]
        for shard, (start, _), out in zip(shards.tolist(), begin.tolist(), values, strict=True):
            if len(out):
                self._read(shard, out.data.cast("B"), start)
        return values

    def _check(self, shard: int, first: int, offsets: npt.NDArray[Any]) -> None:
        """Refuse offsets that lead outside the array of codes, or give a row too many codes."""
        field, counts_N = self.fields[shard][INDICES], np.diff(offsets)
        codes = field.size // field.row_bytes
        if not (counts_N.min() >= 0 and counts_N.max() <= self.width and offsets[0] >= 0 and offsets[-1] <= codes):
            raise DataError(
                f"{self.paths[shard]}: array {OFFSETS!r} does not rise by 0 to {self.width} from row {first:,} on; "
                "prepare the data again"
            )


def stored_length(name: str, rows: int, shape: tuple[int, ...]) -> int:
    """Return how long an array has to be in a shard with ``rows`` rows; ``shape`` is what its header says."""
    if name == OFFSETS:
        return rows + 1
    return math.prod(shape) if name == INDICES else rows
