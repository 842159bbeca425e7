"""Prepared shards: safetensors files of row-major arrays, written in a global shuffle.

Shuffling needs one pass and little memory: each row's hash decides its position. Its high bits name the shard, so
rows are appended to one spill file a shard as they come; then each spill file is sorted by hash on its own.
"""

import itertools
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dkan_core.data.format.integrity import HashingFile
from dkan_core.data.format.layout import SPARSE, Layout, stored_layout
from dkan_core.data.format.sparse_rows import stored_arrays
from dkan_core.data.format.streamed import chunks_in_order, row_layout, safetensors_header
from dkan_core.native.library import native_library
from dkan_core.utils.arrays import UInt64
from dkan_core.utils.schemas import Schema

# Memory that a shard takes while it is sorted. Larger shards would not fit in small pods, smaller ones would need
# more open files: 256 GB are 1,024 shards.
SHARD_BYTES = 256 << 20
# Bytes of records that are reordered at once, within a processor's cache.
CHUNK_BYTES = 4 << 20
# Only spill files have this field; a shard holds its rows in the order of the keys, without the keys.
KEY = "shuffle_key"


# In the folder of its split.
SHARD_FILE = r"[A-Za-z0-9][A-Za-z0-9_.-]*\.safetensors"

SHA256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
ShardPath = Annotated[str, Field(pattern=rf"^(train|valid|test)/{SHARD_FILE}$", max_length=200)]


class Shard(Schema):
    """A prepared file as the manifest lists it."""

    path: ShardPath
    """Relative to the manifest: ``SPLIT/NAME.safetensors``."""

    rows: Annotated[int, Field(ge=1, lt=1 << 48)]
    """Number of rows."""

    bytes: Annotated[int, Field(ge=1, lt=1 << 56)]
    """Size in bytes."""

    sha256: SHA256
    """SHA-256 of the file."""

    blocks: tuple[SHA256, ...]
    """SHA-256 of each block of ``BLOCK_BYTES``."""


def record_type(layout: Layout) -> np.dtype[Any]:
    """Return the type of a row in a spill file: its key, then its arrays."""
    return np.dtype([(KEY, "<u8"), *((name, dtype, shape) for name, (shape, dtype) in layout.items())])


def shard_count(rows: int, record: np.dtype[Any]) -> int:
    """Return how many shards a split of ``rows`` rows has; some may turn out empty."""
    return max(1, math.ceil(rows * record.itemsize / SHARD_BYTES))


def shard_name(index: int, count: int) -> str:
    """Return the name of a shard's file, without a suffix."""
    return f"{index:05d}-of-{count:05d}"


def write_shard(path: Path, listed_as: str, load: Callable[[], npt.NDArray[Any]]) -> Shard:
    """Sort records by their keys, write their arrays and describe the file.

    Args:
        path: The file to write.
        listed_as: Its path in the manifest.
        load: Returns the records: they and the order of their keys are all that this holds in memory.
    """
    records = load()
    order = order_of_keys(records[KEY])
    chunk_rows = max(1, CHUNK_BYTES // records.dtype.itemsize)
    layout = row_layout(records.dtype, without=KEY)
    lengths, sparse = stored_arrays(records, order, chunk_rows) if SPARSE in layout else ({}, {})
    header, names = safetensors_header(stored_layout(layout), len(order), lengths)
    with path.open("wb") as file:
        hashing = HashingFile(file)
        hashing.write(header)
        for name in names:
            for rows in sparse.get(name) or chunks_in_order(records, order, name, chunk_rows):
                if rows.size:
                    hashing.write(rows.data.cast("B"))
        file.flush()
        os.fsync(file.fileno())
    return Shard(path=listed_as, rows=len(order), bytes=hashing.size, sha256=hashing.sha256, blocks=hashing.blocks())


def order_of_keys(keys: UInt64) -> npt.NDArray[np.int64]:
    """Return the indices that sort keys (N,), all of which differ."""
    # All keys differ, as the hash of row numbers is a bijection, so an unstable sort gives the same order.
    library = native_library()
    if library is None:
        return np.argsort(keys)
    order = np.empty(len(keys), np.int64)
    library.dkan_order_keys(keys.ctypes.data, keys.strides[0], len(keys), order.ctypes.data)
    return order


class SpillReader:
    """Reads spill files, one after the other, into the same memory: the system would have to clear new memory."""

    def __init__(self) -> None:
        self._memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, spill: Path, record: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the records in a file, until the next call, and remove it."""
        size = spill.stat().st_size
        if len(self._memory) < size:
            self._memory = np.empty(0, np.uint8)  # freed before the larger one is allocated
            self._memory = np.empty(size, np.uint8)
        with spill.open("rb", buffering=0) as file:
            content = self._memory[:size]
            done = 0
            while done < size:
                count = file.readinto(content[done:].data)
                if not count:
                    raise OSError(f"{spill}: is truncated")
                done += count
        spill.unlink()
        return content.view(record)


class ShardWriter:
    """Collects a split's rows in any order and writes them shuffled.

    Args:
        folder: Where the split's shards go; spill files lie there meanwhile.
        rows: Rows of the whole split, of which other writers may write some.
        record: Type of a row in spill files, from ``record_type``.
    """

    def __init__(self, folder: Path, rows: int, record: np.dtype[Any]) -> None:
        self.folder, self.record = folder, record
        self.count = shard_count(rows, record)
        self.rows = np.zeros(self.count, np.int64)
        """Rows so far, of each shard."""
        folder.mkdir(parents=True)

    def _spill(self, index: int) -> Path:
        return self.folder / f"{shard_name(index, self.count)}.spill"

    def shard_of(self, keys: UInt64) -> npt.NDArray[np.int64]:
        """Return the number of the shard that each row goes to.

        Shape:
            - Input and output: ``(N,)``
        """
        # The high half of the key as a fraction of the shards, in whole numbers: 64 bits hold the product.
        shard = ((keys >> np.uint64(32)) * np.uint64(self.count)) >> np.uint64(32)
        return shard.astype(np.int64)

    def append(self, records: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> None:
        """Take records in the order of their shards; ``counts`` (count,) has how many go to each."""
        ends = np.cumsum(counts).tolist()
        for index, (start, stop) in enumerate(itertools.pairwise([0, *ends])):
            if start < stop:
                with self._spill(index).open("ab") as file:
                    file.write(records[start:stop].data)
        self.rows += counts

    def spills(self) -> list[Path]:
        """Return the spill files, of the shards that got any row."""
        return [self._spill(index) for index in np.flatnonzero(self.rows).tolist()]

    def finish(self) -> list[Shard]:
        """Sort each spill file, write its shard and describe it."""
        reader, shards = SpillReader(), []
        for spill in self.spills():
            path = spill.with_suffix(".safetensors")
            load = partial(reader.take, spill, self.record)
            shards.append(write_shard(path, f"{self.folder.name}/{path.name}", load))
        return shards
