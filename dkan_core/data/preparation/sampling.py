"""A uniform sample of rows: the K with the smallest hash of their number (bottom-k).

It depends neither on the order of the rows nor on how they are cut into parts: the sample of the whole is the bottom-k
of the samples of the parts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.hashing import splitmix64
from dkan_core.utils.arrays import UInt64

# A piece (an Arrow table) takes some kB even with a single row: many small pieces would outweigh their rows.
MAX_PIECES = 256
# Rows of a record batch, the smallest unit that is read from a file. Some K/parts rows are taken from each part, so
# with hundreds of parts larger batches would mostly hold rows that are not taken.
ROWS_READ = 1024
# Row numbers hashed at once: the arrays fit in the cache, and malloc serves them without a system call each.
NUMBERS_HASHED = 1 << 13


@dataclass(frozen=True)
class Sample:
    """Rows in any order; ``keys`` (N,) are different from each other."""

    keys: UInt64
    rows: pa.Table


class BottomK:
    """The K rows with the smallest hash seen so far.

    Args:
        size: K.
        seed: Of the hash.
        limit: A key that none of the K rows exceeds, where that is known. Default: found on the way.
    """

    def __init__(self, size: int, seed: int, limit: np.uint64 | None = None) -> None:
        self.size, self.seed = size, seed
        self.keys: UInt64 = np.empty(0, dtype=np.uint64)
        self.pieces: list[dict[str, pa.Array]] = []
        self.limit = limit

    def add(self, blocks: Iterable[pa.RecordBatch], row_ids: UInt64, eligible: npt.NDArray[np.bool_]) -> None:
        """Take some rows into account.

        Args:
            blocks: The rows (N), some columns at a time, always cut alike. All are gone through.
            row_ids: Their numbers (N,), counted through all files.
            eligible: Which of them may be sampled (N,).
        """
        add_to_samples([self], blocks, row_ids, [eligible])

    def _choose(self, row_ids: UInt64, eligible: npt.NDArray[np.bool_]) -> pa.Array:
        """Begin a piece, and return which rows of a batch it is to hold."""
        keys = splitmix64(row_ids, seed=self.seed)
        chosen = np.flatnonzero(self._may_stay(keys, eligible))
        self.pieces.append({})
        self.keys = np.concatenate([self.keys, keys[chosen]])
        return pa.array(chosen)

    def _prune_if_full(self) -> None:
        # Cut back to K at a quarter more, so that rows are not sorted with every batch. The second bound is for late
        # batches, of which few rows are kept: pieces of a few rows would pile up.
        if len(self.keys) > self.size + self.size // 4 or len(self.pieces) > MAX_PIECES:
            self._prune()

    def _may_stay(self, keys: UInt64, eligible: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which rows may be among the K, by all keys up to these."""
        if self.limit is not None:
            eligible = eligible & (keys <= self.limit)
        known = np.concatenate([self.keys, keys[eligible]])
        if len(known) <= self.size:
            return eligible
        # Before rows are copied: most rows of the first batches would be copied in vain.
        self.limit = np.partition(known, self.size - 1)[self.size - 1]
        return eligible & (keys <= self.limit)

    def _prune(self) -> Sample:
        sample = _smallest(self.keys, self.pieces, self.size)
        columns = zip(sample.rows.column_names, sample.rows.columns, strict=True)
        self.keys, self.pieces = sample.keys, [{name: column.chunk(0) for name, column in columns}]
        return sample

    def sample(self) -> Sample:
        """Return the sample of all rows so far."""
        if len(self.keys) > self.size:
            return self._prune()
        # Chunked, because joining the pieces would double the memory for as long as both are held.
        columns = {name: pa.chunked_array([piece[name] for piece in self.pieces]) for name in self.pieces[0]}
        return Sample(self.keys, pa.table(columns))


def add_to_samples(
    samples: Sequence[BottomK],
    blocks: Iterable[pa.RecordBatch],
    row_ids: UInt64,
    eligible: Sequence[npt.NDArray[np.bool_]],
) -> None:
    """Let several samples take the same rows into account, with the arguments of ``BottomK.add`` for each."""
    chosen = [sample._choose(row_ids, rows) for sample, rows in zip(samples, eligible, strict=True)]
    for block in blocks:
        for sample, rows in zip(samples, chosen, strict=True):
            found = block.take(rows)
            sample.pieces[-1] |= zip(found.schema.names, found.columns, strict=True)
    for sample in samples:
        sample._prune_if_full()


def smallest_keys_limit(
    rows: int, size: int, seed: int, is_eligible: Callable[[UInt64], npt.NDArray[np.bool_]]
) -> np.uint64 | None:
    """Return the largest key of the bottom-k of rows 0, 1, 2 ..., or None where all eligible ones are in it.

    Args:
        rows: How many there are.
        size: K.
        seed: Of the hash.
        is_eligible: Tells of rows, by their numbers, which may be sampled.
    """
    kept, limit = np.empty(0, np.uint64), np.uint64(2**64 - 1)
    for first in range(0, rows, NUMBERS_HASHED):
        row_ids = np.arange(first, min(first + NUMBERS_HASHED, rows), dtype=np.uint64)
        keys = splitmix64(row_ids, seed=seed)
        low = np.flatnonzero(keys <= limit)
        kept = np.concatenate([kept, keys[low[is_eligible(row_ids[low])]]])
        if len(kept) > size:
            kept = np.partition(kept, size - 1)[:size]
            limit = kept[-1]
    return limit if len(kept) == size else None


def _smallest(keys: UInt64, pieces: Sequence[dict[str, pa.Array]], size: int) -> Sample:
    """Return the rows with the smallest keys; empties the pieces."""
    smallest = np.argsort(keys)[:size]
    taken = pa.array(smallest)
    # Column by column, so that only one column is held twice at a time.
    kept = {name: pa.concat_arrays([piece.pop(name) for piece in pieces]).take(taken) for name in [*pieces[0]]}
    return Sample(keys[smallest], pa.table(kept))


def save_row_sample(path: Path, sample: Sample) -> None:
    """Write a sample as an Arrow file, the keys first and rising, in record batches that can be read alone."""
    order = np.argsort(sample.keys)
    table = sample.rows.take(pa.array(order)).add_column(0, "key", pa.array(sample.keys[order]))
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_READ)


def merge_samples(files: Sequence[Callable[[], Any]], size: int) -> Sample:
    """Return the bottom-k of samples in files, of which no more is read than is taken.

    Args:
        files: Each opens a file that ``save_row_sample`` wrote, for binary reading.
        size: Rows of the result at most.
    """
    keys = [_read_keys(file) for file in files]
    everything = np.concatenate(keys)
    # The K-th smallest key of all parts: rows with larger keys are not read.
    limit = np.partition(everything, size - 1)[size - 1] if len(everything) > size else np.uint64(2**64 - 1)
    taken = [part[: np.searchsorted(part, limit, side="right")] for part in keys]
    tables = [_read_rows(file, len(part)) for file, part in zip(files, taken, strict=True)]
    pieces = [{name: table[name].combine_chunks() for name in table.column_names} for table in tables]
    return _smallest(np.concatenate(taken), pieces, size)


def _read_keys(file: Callable[[], Any]) -> UInt64:
    with file() as source, pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0])) as reader:
        keys: UInt64 = reader.read_all().column(0).to_numpy()
    return keys


def _read_rows(file: Callable[[], Any], count: int) -> pa.Table:
    with file() as source, pa.ipc.open_file(source) as reader:
        batches = [reader.get_batch(index) for index in range(math.ceil(count / ROWS_READ))]
        return pa.Table.from_batches(batches, reader.schema).slice(0, count).remove_column(0)
