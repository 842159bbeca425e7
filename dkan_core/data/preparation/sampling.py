"""A uniform sample of rows: the K with the smallest hash of their number (bottom-k).

It depends neither on the order of the rows nor on how they are cut into parts: the sample of the whole is the bottom-k
of the samples of the parts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.hashing import UInt64, splitmix64

# Each piece is a table of Arrow, some kB even with a single row: more of them would outweigh the rows.
MAX_PIECES = 256
# Rows of a record batch, the least that is read of a file: of each part some K/parts rows are taken, so larger batches
# would read many rows in vain when there are hundreds of parts.
ROWS_READ = 1024


@dataclass(frozen=True)
class Sample:
    """Rows in the order of their keys; ``keys`` (N,) are different from each other."""

    keys: UInt64
    rows: pa.Table


class BottomK:
    """The K rows with the smallest hash seen so far."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.keys: UInt64 = np.empty(0, dtype=np.uint64)
        self.pieces: list[pa.Table] = []
        self.limit: np.uint64 | None = None

    def add(self, batch: pa.RecordBatch, row_ids: UInt64, eligible: npt.NDArray[np.bool_]) -> None:
        """Take some rows into account.

        Args:
            batch: The rows (N).
            row_ids: Their numbers (N,), counted through all files.
            eligible: Which of them may be sampled (N,).
        """
        keys = splitmix64(row_ids, seed=self.seed)
        if self.limit is not None:
            eligible = eligible & (keys < self.limit)
        self.pieces.append(pa.Table.from_batches([batch]).filter(pa.array(eligible)))
        self.keys = np.concatenate([self.keys, keys[eligible]])
        # A quarter more than is kept, so that rows are sorted once per quarter of a sample rather than with each batch.
        # Few rows of a late batch are kept: without the second bound, pieces of a few rows would pile up.
        if len(self.keys) > self.size + self.size // 4 or len(self.pieces) > MAX_PIECES:
            self._prune()

    def _prune(self) -> None:
        sample = _smallest(self.keys, self.pieces, self.size)
        self.keys, self.pieces = sample.keys, [sample.rows]
        # Once there are K rows, the largest of their keys is a bound: rows above it need not be kept at all.
        if len(self.keys) == self.size:
            self.limit = self.keys[-1]

    def sample(self) -> Sample:
        """Return the sample of all rows so far."""
        self._prune()
        return Sample(self.keys, self.pieces[0])


def _smallest(keys: UInt64, pieces: Sequence[pa.Table], size: int) -> Sample:
    smallest = np.argsort(keys)[:size]
    table = pa.concat_tables(pieces)
    # One column after the other: the copy made on the way is then as small as a column.
    kept = [column.combine_chunks().take(pa.array(smallest)) for column in table.columns]
    return Sample(keys[smallest], pa.Table.from_arrays(kept, schema=table.schema))


def save_row_sample(path: Path, sample: Sample) -> None:
    """Write a sample as an Arrow file: the keys as the first column, in record batches that can be read alone."""
    table = sample.rows.add_column(0, "key", pa.array(sample.keys))
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
    # The K-th smallest key of all parts: of each part no rows behind it are read.
    limit = np.partition(everything, size - 1)[size - 1] if len(everything) > size else np.uint64(2**64 - 1)
    taken = [part[: np.searchsorted(part, limit, side="right")] for part in keys]
    pieces = [_read_rows(file, len(part)) for file, part in zip(files, taken, strict=True)]
    return _smallest(np.concatenate(taken), pieces, size)


def _read_keys(file: Callable[[], Any]) -> UInt64:
    with file() as source, pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0])) as reader:
        keys: UInt64 = reader.read_all().column(0).to_numpy()
    return keys


def _read_rows(file: Callable[[], Any], count: int) -> pa.Table:
    with file() as source, pa.ipc.open_file(source) as reader:
        batches = [reader.get_batch(index) for index in range(math.ceil(count / ROWS_READ))]
        return pa.Table.from_batches(batches, reader.schema).slice(0, count).remove_column(0)
