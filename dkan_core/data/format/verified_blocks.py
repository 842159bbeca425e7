"""Marks on the blocks of shards that were verified.

Shape suffixes: N ranges of bytes, B blocks of all shards.
"""

from collections.abc import Sequence

import numpy as np

from dkan_core.data.format import integrity
from dkan_core.utils.arrays import Int64

Block = tuple[int, int]
"""Index of a shard in its split, and of a block in that shard."""


class VerifiedBlocks:
    """The blocks of all shards, given their number in each, with a mark on those that were verified."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._verified_B = np.zeros(int(self._first[-1]), bool)
        self.is_complete = False
        """Whether every block is known to be verified: usually so after the first epoch."""

    def add(self, shard: int, block: int) -> None:
        """Mark a block as verified."""
        self._verified_B[self._first[shard] + block] = True

    def clear(self) -> None:
        """Take all marks away."""
        self._verified_B[:] = False
        self.is_complete = False

    def missing(self, shard_N: Int64, start_N: Int64, stop_N: Int64) -> dict[Block, list[int]]:
        """Return the unverified blocks that hold some bytes, or the header of a shard with such bytes.

        By block, the numbers of its parts that hold the bytes; empty for a block that is needed for its header alone.

        Args:
            shard_N: In which shard each range of bytes lies.
            start_N: Its first byte.
            stop_N: The byte after its last one; no range is empty.
        """
        base_N, size, parts = self._first[shard_N], integrity.part_bytes(), integrity.PARTS
        touched = _spanned(base_N * parts + start_N // size, base_N * parts + (stop_N - 1) // size)
        touched = touched[~self._verified_B[touched // parts]]
        # The first block has the header, which says where the arrays lie.
        headers = np.unique(base_N)
        missing = np.union1d(headers[~self._verified_B[headers]], touched // parts)
        if not len(missing):
            self.is_complete = bool(self._verified_B.all())
            return {}
        shards = np.searchsorted(self._first, missing, side="right") - 1
        bounds = np.searchsorted(touched, missing * parts)
        return {
            (shard, block): (of_block % parts).tolist()
            for shard, block, of_block in zip(
                shards.tolist(), (missing - self._first[shards]).tolist(), np.split(touched, bounds[1:]), strict=True
            )
        }


def _spanned(first_N: Int64, last_N: Int64) -> Int64:
    """Return every number from a first to its last, each once, in ascending order."""
    count_N = last_N - first_N + 1
    skipped_N = np.cumsum(count_N) - count_N
    return np.unique(np.repeat(first_N - skipped_N, count_N) + np.arange(count_N.sum()))
