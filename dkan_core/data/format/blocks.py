"""Which blocks of which shards were verified.

Shape suffixes: N stretches of bytes, B blocks of all shards.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dkan_core.data.format import integrity

Int64 = npt.NDArray[np.int64]


class VerifiedBlocks:
    """The blocks of all shards, with a mark on those that were verified.

    Args:
        counts: Blocks of each shard.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._verified_B = np.zeros(int(self._first[-1]), bool)
        self.is_complete = False
        """Whether it is known that every block was verified: the usual case after the first epoch."""

    def add(self, shard: int, block: int) -> None:
        """Mark a block as verified."""
        self._verified_B[self._first[shard] + block] = True

    def clear(self) -> None:
        """Take all marks away."""
        self._verified_B[:] = False
        self.is_complete = False

    def missing(self, shard_N: Int64, start_N: Int64, stop_N: Int64) -> list[tuple[int, int]]:
        """Return shard and number of the blocks that are not verified yet, in which some bytes lie, or those's header.

        Args:
            shard_N: In which shard each stretch of bytes lies.
            start_N: Its first byte.
            stop_N: The one past its last; there is at least one.
        """
        base_N, size = self._first[shard_N], integrity.BLOCK_BYTES
        first_N, last_N = base_N + start_N // size, base_N + (stop_N - 1) // size
        count_N = last_N - first_N + 1
        skipped_N = np.cumsum(count_N) - count_N
        touched = np.repeat(first_N - skipped_N, count_N) + np.arange(count_N.sum())
        # The first block has the header, which says where the arrays lie.
        is_touched_B = np.zeros(len(self._verified_B), bool)
        is_touched_B[touched] = True
        is_touched_B[base_N] = True
        missing = np.flatnonzero(is_touched_B & ~self._verified_B)
        if not len(missing):
            self.is_complete = bool(self._verified_B.all())
        shards = np.searchsorted(self._first, missing, side="right") - 1
        return list(zip(shards.tolist(), (missing - self._first[shards]).tolist(), strict=True))
