"""Batches of a split, gathered whole from the shards in the order that ``order`` gives."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.format.block_cache import read_source
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.remote_reader import RemoteShardReader
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.loading.order import (
    dropout_keys,
    epoch_order,
    piece_rows,
    row_keys,
    slice_of,
    steps_per_epoch,
    stored_order,
)
from dkan_core.data.loading.prefetching import PREFETCH, BatchRing, prefetched
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Arrays, Int64
from dkan_core.utils.messages import hint

TakeBuffers = Callable[[int], Arrays]
"""Returns arrays with a number of rows, to gather a batch into."""

KEYS = "dropout_key"


class RowReader(Protocol):
    """Rows of a split by their number, on disk (``ShardReader``) or in memory (``ArraysReader``)."""

    starts: Int64
    """First row of each shard, and the number of rows at the end."""

    @property
    def rows(self) -> int:
        """Rows in all shards."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays, as they are stored."""

    def empty(self, rows: int) -> Arrays:
        """Return uninitialized arrays for ``rows`` rows."""

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Read the rows of ``extents`` (first, past the last), none of which crosses a shard, one after the other.

        Args:
            extents: Ranges of rows.
            out: Arrays with exactly that number of rows, to read them into. Default: new ones.
        """

    def keep_in_memory(self) -> None:
        """Keep every row in memory once it was read, and read it from there."""


class SampledRows:
    """A sample of a split, read through another reader, which the caller closes.

    It has the first rows of each shard, in proportion to the shards' rows: ``prepare`` has shuffled all rows, but those
    that were added later are in shards of their own.
    """

    def __init__(self, reader: RowReader, rows: int) -> None:
        self.reader, self.rows = reader, min(rows, reader.rows)
        starts = reader.starts * self.rows // max(1, reader.rows)
        has_rows = np.diff(starts) > 0
        self.starts = np.append(starts[:-1][has_rows], self.rows)
        self._shifts = reader.starts[:-1][has_rows] - self.starts[:-1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays."""
        return self.reader.row_bytes

    def empty(self, rows: int) -> Arrays:
        """Return uninitialized arrays for ``rows`` rows."""
        return self.reader.empty(rows)

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Return the rows of ``extents`` (first, past the last), one after the other."""
        extents_E2 = np.asarray(extents, np.int64).reshape(-1, 2)
        shard_E = np.searchsorted(self.starts, extents_E2[:, 0], side="right") - 1
        return self.reader.gather(extents_E2 + self._shifts[shard_E, None], out)

    def keep_in_memory(self) -> None:
        """Keep every row in memory once it was read, those that are not in the sample, too."""
        self.reader.keep_in_memory()


def open_split(folder: Path, prepared: PreparedData, split: str) -> ShardReader:
    """Open the shards of a split, "train", "valid" or "test", of prepared data.

    Raises:
        DataError: There is no such split, or a shard is missing, cut off or damaged.
    """
    if split not in prepared.splits:
        raise DataError(f"{folder}: has no split {split!r}; {hint(split, prepared.splits, [*prepared.splits])}")
    shards = prepared.splits[split].shards
    source = read_source(folder)
    if source is not None:
        return RemoteShardReader(folder, source, shards, prepared.content)
    return ShardReader(folder, shards, prepared.content)


def train_batches(
    reader: RowReader,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    rank: int = 0,
    workers: int = 1,
    weights: Sequence[float] = (),
    first: int = 0,
    buffers: TakeBuffers | None = None,
    keep_keys: bool = False,
) -> Iterator[Arrays]:
    """Yield a worker's slice of each global batch of an epoch.

    A slice may have no rows in the last batch. In addition to the split's arrays it holds ``dropout_key``.

    Args:
        reader: The train split.
        seed: Of the run.
        epoch: Counted from 0.
        batch_size: Rows of a global batch.
        rank: The worker.
        workers: How many there are.
        weights: Share of each worker. Default: even shares.
        first: The first global batch to yield.
        buffers: Gives the arrays of each batch. Default: new ones.
        keep_keys: Whether a row has the same key in every epoch.
    """
    take = buffers or (lambda rows: batch_buffers(reader, rows))
    piece = piece_rows(reader.rows, reader.row_bytes)
    order = epoch_order(reader.starts, piece=piece, seed=seed, epoch=epoch)
    for step in range(first, steps_per_epoch(reader.rows, batch_size)):
        start, stop = slice_of(reader.rows, step, batch_size=batch_size, rank=rank, workers=workers, weights=weights)
        batch = take(stop - start)
        extents = order.extents(start, stop)
        reader.gather(extents, batch)
        if keep_keys:
            row_keys(seed, extents, batch[KEYS])
        else:
            dropout_keys(seed, epoch * reader.rows + start, stop - start, batch[KEYS])
        yield batch


def row_bytes_in_batch(reader: RowReader) -> int:
    """Return the bytes of one row of a batch, where lists of IDs are all as long as the longest one."""
    return sum(array.nbytes for array in reader.empty(1).values())


def batch_buffers(reader: RowReader, rows: int) -> Arrays:
    """Return arrays for a batch with ``rows`` rows: those of the split, and ``dropout_key``."""
    return {**reader.empty(rows), KEYS: np.empty(rows, np.int32)}


@dataclass(frozen=True, kw_only=True)
class DeviceCopies:
    """How a device copies batches from the host's buffers while the host goes on."""

    pin: Callable[[Arrays], Arrays]
    """Returns arrays like the given ones in pinned memory, which the device reads directly."""

    begun: Callable[[], Callable[[], object]]
    """Returns a function that waits for all copies begun so far."""


def slice_of_rank(rows: int, step: int, config: ResolvedTrainConfig, rank: int) -> tuple[int, int]:
    """Return the stream positions that a rank takes in a step of an epoch; ``rows`` are those of the split."""
    copies, copy = config.workers // config.workers_per_copy, rank // config.workers_per_copy
    return slice_of(rows, step, batch_size=config.batch_size, rank=copy, workers=copies, weights=config.slice_weights)


def _largest_slice(rows: int, config: ResolvedTrainConfig, rank: int) -> int:
    """Return an upper bound of the rows in a slice of a rank; ``rows`` are those of the split."""
    start, stop = slice_of_rank(rows, 0, config, rank)
    # Rounding may give a slice of the smaller last batch one row more than its share.
    return stop - start + 1


def run_batches(
    reader: RowReader,
    config: ResolvedTrainConfig,
    rank: int = 0,
    *,
    first: int = 0,
    buffers: TakeBuffers | None = None,
) -> Iterator[Arrays]:
    """Yield a worker's slice of each global batch of a run.

    Args:
        reader: The train split.
        config: Settings of the run.
        rank: The worker.
        first: The first step to yield.
        buffers: Gives the arrays of each batch. Default: new ones.
    """
    epoch, batch = divmod(first, steps_per_epoch(reader.rows, config.batch_size))
    while epoch < config.epochs:
        yield from train_batches(
            reader,
            seed=config.seed,
            epoch=epoch,
            batch_size=config.batch_size,
            rank=rank // config.workers_per_copy,
            workers=config.workers // config.workers_per_copy,
            weights=config.slice_weights,
            first=batch,
            buffers=buffers,
            keep_keys=config.bags_rows,
        )
        epoch, batch = epoch + 1, 0


class SliceBatches:
    """The slices of a run's global batches, at random access; the slices of one rank are read ahead, in order.

    They are read into buffers that are reused: a batch is valid until the next ``get``.

    Args:
        reader: The train split.
        config: Resolved settings.
        rank: The slice to read ahead.
        copies: Those to a device that read the buffers. Default: nothing reads them after the next ``get``.
    """

    def __init__(
        self, reader: RowReader, config: ResolvedTrainConfig, rank: int, copies: DeviceCopies | None = None
    ) -> None:
        self.reader, self.config, self.rank, self.copies = reader, config, rank, copies
        self._next = -1
        self._ring: BatchRing | None = None
        self._ahead: Generator[Arrays, None, None] | None = None
        self._is_lent = False

    def get(self, step: int, rank: int) -> Arrays:
        """Return the rows of a slice of a step, in arrays that hold others after the next call."""
        # Another rank's slice is read once, in place of a worker that died, so nothing is read ahead for it.
        if rank != self.rank:
            return next(run_batches(self.reader, self.config, rank, first=step))
        if self._ahead is None or self._ring is None or step != self._next:
            self.close()
            self._ring = self._new_ring()
            batches = run_batches(self.reader, self.config, rank, first=step, buffers=self._ring.take)
            self._ahead = prefetched(batches)
        elif self._is_lent:
            self._ring.hand_back(self.copies.begun() if self.copies else None)
        # Reset first: if reading fails, no buffer is lent.
        self._is_lent = False
        self._next = step + 1
        batch = next(self._ahead)
        self._is_lent = True
        return batch

    def _new_ring(self) -> BatchRing:
        rows = _largest_slice(self.reader.rows, self.config, self.rank)
        # One buffer is with the caller while the others are filled.
        buffers = [batch_buffers(self.reader, rows) for _ in range(1 + PREFETCH)]
        return BatchRing([self.copies.pin(arrays) for arrays in buffers] if self.copies else buffers)

    def close(self) -> None:
        """Stop reading ahead; the caller may close the rows next."""
        self._is_lent = False
        if self._ring is not None:
            # Wakes the thread, which may wait for a free buffer.
            self._ring.close()
            self._ring = None
        if self._ahead is not None:
            self._ahead.close()


def all_batches(reader: RowReader, batch_size: int) -> Iterator[Arrays]:
    """Yield every row of a split in stored order."""
    order = stored_order(reader.starts)
    for start in range(0, reader.rows, batch_size):
        yield reader.gather(order.extents(start, min(start + batch_size, reader.rows)))


def read_sample(reader: RowReader, rows: int) -> Arrays:
    """Return at most ``rows`` rows, as ``SampledRows`` chooses them, in an order whose first ones are a sample, too."""
    sample = SampledRows(reader, rows)
    arrays = sample.gather(stored_order(sample.starts).extents(0, sample.rows))
    if len(sample.starts) <= 2:
        return arrays
    # How far from the start of its shard's rows a row is, as a share of them. Random within a step, as every second or
    # fifth row, which callers hold out, would be those of one shard where shards are of equal size.
    random = np.random.default_rng(0)
    places_N = np.concatenate([(np.arange(n) + random.random(n)) / n for n in np.diff(sample.starts)])
    order_N = np.argsort(places_N, kind="stable")
    return {name: array[order_N] for name, array in arrays.items()}
