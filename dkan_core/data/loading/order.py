"""The order of rows: a pure function of seed and epoch.

An epoch visits runs of consecutive rows ("pieces") in a random order. ``prepare`` has shuffled the rows, so this
is as good as a full shuffle and reads long ranges. The stream of rows is cut into global batches, and each of those
into one slice per worker: any number of workers sees the same global batches. Whatever is random about a row in a step
is computed from its position in the stream (``dropout_key``), so it does not depend on how a batch is cut either.

Shape suffixes: E pieces, S shards.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from dkan_core.data.hashing import GOLDEN, MASK, salted, splitmix64
from dkan_core.native.library import native_library
from dkan_core.utils.arrays import Int32, Int64

# Measured: pieces of 64 rows of 768 features (48 KiB) are read at 0.8 to 0.9 of the speed of memcpy, single rows at
# 0.5. Larger pieces are no faster, and shuffle less.
PIECE_BYTES = 48 << 10
MIN_PIECE_ROWS = 64
# Permuting pieces is as good as a full shuffle of the rows, as ``prepare`` has shuffled them (measured on input sorted
# by label: area under the ROC curve 0.8681 and 0.8677), as long as there are many: small data have smaller pieces.
MIN_PIECES = 2048


def piece_rows(rows: int, row_bytes: int) -> int:
    """Return how many consecutive rows are read at once: some 48 KiB, but many pieces in small data.

    >>> piece_rows(100_000_000, 768), piece_rows(30_000, 60)
    (64, 64)
    """
    return max(MIN_PIECE_ROWS, min(PIECE_BYTES // max(1, row_bytes), rows // MIN_PIECES))


class RowStream:
    """Rows of a split in some order, made of ranges of consecutive rows.

    Args:
        first: First row of each range, in the order they are visited.
        position: Where each range begins in the stream, and the number of rows at the end.
    """

    def __init__(self, first: Int64, position: Int64) -> None:
        self.position = position
        # Computed for all ranges at once: done per batch, it would take as long as copying the rows of a small batch.
        self.ranges = np.stack([first, first + np.diff(position)], axis=1)

    @property
    def first(self) -> Int64:
        """First row of each range."""
        return self.ranges[:, 0]

    def extents(self, start: int, stop: int) -> Int64:
        """Return the ranges at positions ``start`` up to ``stop`` of the stream.

        Shape:
            - Output: ``(E, 2)``, first row and the one past the last of each range
        """
        if stop <= start:
            return np.empty((0, 2), np.int64)
        low = int(self.position.searchsorted(start, side="right")) - 1
        high = int(self.position.searchsorted(stop - 1, side="right"))
        covered = self.ranges[low:high].copy()
        covered[0, 0] += start - self.position[low]
        covered[-1, 1] -= self.position[high] - stop
        return covered


def epoch_order(starts: Int64, *, piece: int, seed: int, epoch: int) -> RowStream:
    """Return the row stream of an epoch.

    Args:
        starts: First row of each shard, and the number of rows at the end, ``(S + 1,)``.
        piece: Rows of a piece; a shard's last one may be shorter.
        seed: With ``epoch`` the only thing that decides the order.
        epoch: Counted from 0.
    """
    firsts = [np.arange(start, stop, piece) for start, stop in itertools.pairwise(starts)]
    ends = [np.minimum(first + piece, stop) for first, stop in zip(firsts, starts[1:], strict=True)]
    # The generator is explicit because numpy may change its default one, and a seed must always give the same order.
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(sum(map(len, firsts)))
    first = np.concatenate(firsts)[order]
    return RowStream(first, np.concatenate([[0], np.cumsum(np.concatenate(ends)[order] - first)]))


def stored_order(starts: Int64) -> RowStream:
    """Return the rows of all shards as they are stored; ``starts`` as in ``epoch_order``."""
    return RowStream(starts[:-1], starts)


def slice_of(
    rows: int, step: int, *, batch_size: int, rank: int, workers: int, weights: Sequence[float] = ()
) -> tuple[int, int]:
    """Return the stream positions that a worker takes in a step: a share of the global batch, even or by weight.

    Args:
        rows: Of the split.
        step: Within the epoch.
        batch_size: Rows of a global batch.
        rank: The worker.
        workers: How many there are.
        weights: Share of each worker. Default: even shares.

    >>> [slice_of(10, 1, batch_size=6, rank=rank, workers=3) for rank in range(3)]
    [(6, 7), (7, 8), (8, 10)]
    >>> [slice_of(10, 0, batch_size=6, rank=rank, workers=2, weights=(2.0, 1.0)) for rank in range(2)]
    [(0, 4), (4, 6)]
    """
    first = step * batch_size
    size = min(batch_size, rows - first)
    return first + _cut(size, rank, workers, weights), first + _cut(size, rank + 1, workers, weights)


def _cut(size: int, rank: int, workers: int, weights: Sequence[float]) -> int:
    """Return where a worker's slice of ``size`` rows begins, which is where the previous worker's ends."""
    if not weights or rank == workers:
        return size * rank // workers
    # Multiply before dividing: weights that are whole numbers of rows then give exactly these numbers.
    return int(size * sum(weights[:rank]) / sum(weights))


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Return the number of global batches in an epoch, the last one smaller."""
    return -(-rows // batch_size)


def dropout_keys(seed: int, first: int, rows: int, out: Int32 | None = None) -> Int32:
    """Return a key for each of some consecutive rows of a run's stream, all its epochs one after the other.

    The position in the stream determines both the step and the row in it. Two rows of a step rarely have the same key
    (one pair in 2**32); they then have the same mask.

    Args:
        seed: Of the run.
        first: Position of the first row.
        rows: How many.
        out: Gets the keys. Default: a new array.

    >>> dropout_keys(0, 5, 3)[1:].tolist() == dropout_keys(0, 6, 2).tolist()
    True
    """
    return _mixed_keys(seed, first, np.empty(rows, np.int32) if out is None else out)


def row_keys(seed: int, extents: Int64, out: Int32) -> None:
    """Put a key for each row of some ranges into ``out``: the same in every epoch.

    Args:
        seed: Of the run.
        extents: Ranges of rows, as ``RowStream.extents`` returns them.
        out: Gets the keys, one for each row.
    """
    start = 0
    for first, stop in extents.tolist():
        _mixed_keys(seed, first, out[start : start + stop - first])
        start += stop - first


def _mixed_keys(seed: int, first: int, keys: Int32) -> Int32:
    rows = len(keys)
    salt, library = salted(seed, "dropout"), native_library()
    if library is not None:
        library.dkan_mix_rows(first, rows, (GOLDEN * (salt + 1)) & MASK, keys.ctypes.data)
        return keys
    mixed = splitmix64(np.arange(first, first + rows).astype(np.uint64), seed=salt)
    keys[:] = (mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return keys
