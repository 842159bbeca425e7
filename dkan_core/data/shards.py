"""Prepared shards: safetensors files of row-major arrays, written in a global shuffle and read in pieces.

Shuffling needs one pass and little memory: each row's hash decides its place. Its high bits name the shard, so
rows are appended to one spill file a shard as they come; then each spill file is sorted by hash on its own.
"""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from dkan_core.data.hashing import UInt64
from dkan_core.errors import DataError
from dkan_core.machine import allow_open_files

SHARD_BYTES = 256 << 20
OTHER_OPEN_FILES = 256
KEY = "shuffle_key"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A prepared file as the manifest lists it; ``path`` is relative to the manifest."""

    path: str
    rows: int
    bytes: int
    sha256: str


Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Row shape and dtype of each array, such as ``{"numeric": ((29,), "uint8")}``."""


def record_type(layout: Layout) -> np.dtype[Any]:
    """Return the type of a row in a spill file: its key, then its arrays."""
    return np.dtype([(KEY, "<u8"), *((name, dtype, shape) for name, (shape, dtype) in layout.items())])


def shard_count(rows: int, record: np.dtype[Any]) -> int:
    """Return how many shards a split of so many rows has; one or another may turn out empty."""
    return max(1, math.ceil(rows * record.itemsize / SHARD_BYTES))


def shard_name(index: int, count: int) -> str:
    """Return the name of a shard's file, without a suffix."""
    return f"{index:05d}-of-{count:05d}"


def write_shard(path: Path, listed_as: str, load: Callable[[], npt.NDArray[Any]]) -> Shard:
    """Sort records by their keys, write their arrays and describe the file.

    Args:
        path: The file to write.
        listed_as: Its path in the manifest.
        load: Returns the records. They are not handed over at once because this frees them as soon as it can.
    """
    records = load()
    order = np.argsort(records[KEY])
    arrays = {name: records[name][order] for name in records.dtype.names or () if name != KEY}
    # Each of these copies is as large as the shard.
    del records
    content = save(arrays)
    del arrays
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Shard(path=listed_as, rows=len(order), bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class ShardWriter:
    """Collects a split's rows in any order and writes them shuffled.

    Args:
        folder: Where the split's shards go; spill files lie there meanwhile.
        rows: How many rows will come, to all who write the split.
        layout: Row shape and dtype of each array.
    """

    def __init__(self, folder: Path, rows: int, layout: Layout) -> None:
        self.folder = folder
        self.record = record_type(layout)
        self.count = shard_count(rows, self.record)
        folder.mkdir(parents=True)

    def _path(self, index: int, suffix: str) -> Path:
        return self.folder / f"{shard_name(index, self.count)}.{suffix}"

    def add(self, keys: UInt64, arrays: Arrays) -> None:
        """Take rows; ``keys`` (N,) decide where each one goes."""
        records = np.empty(len(keys), dtype=self.record)
        records[KEY] = keys
        for name, array in arrays.items():
            records[name] = array
        shard = ((keys >> np.uint64(32)) * np.uint64(self.count)) >> np.uint64(32)
        records = records[np.argsort(shard, kind="stable")]
        ends = np.cumsum(np.bincount(shard.astype(np.int64), minlength=self.count))
        for index, (start, stop) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if start < stop:
                with self._path(index, "spill").open("ab") as file:
                    file.write(records[start:stop].data)

    def spills(self) -> list[Path]:
        """Return the spill file of each shard; one that got no row has none."""
        return [self._path(index, "spill") for index in range(self.count)]

    def finish(self) -> Iterator[Shard]:
        """Sort each spill file, write its shard and describe it."""
        for index, spill in enumerate(self.spills()):
            if spill.exists():
                path = self._path(index, "safetensors")
                yield write_shard(path, f"{self.folder.name}/{path.name}", partial(self._take, spill))

    def _take(self, spill: Path) -> npt.NDArray[Any]:
        records = np.fromfile(spill, dtype=self.record)
        spill.unlink()
        return records


@dataclass(frozen=True)
class _Field:
    """Where an array lies in a shard."""

    offset: int
    row_bytes: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]


_DTYPES = {"U8": np.uint8, "I32": np.int32, "F16": np.float16, "F32": np.float32}


class ShardReader:
    """Reads rows of a split by their number, counted through its shards.

    Reads go through ``preadv`` into fresh buffers: a file that vanishes is an error that names it, not a bus error.
    """

    def __init__(self, root: Path, shards: Sequence[Shard]) -> None:
        self.paths = [root / shard.path for shard in shards]
        allow_open_files(len(shards) + OTHER_OPEN_FILES)
        self.starts = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        with ExitStack() as stack:
            self.handles = [_open(path, shard, stack) for path, shard in zip(self.paths, shards, strict=True)]
            self.fields = [
                _read_header(path, handle, shard)
                for path, handle, shard in zip(self.paths, self.handles, shards, strict=True)
            ]
            self._closer = stack.pop_all()

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return int(self.starts[-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays."""
        return sum(field.row_bytes for field in self.fields[0].values())

    def close(self) -> None:
        """Close the files."""
        self._closer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def gather(self, extents: Sequence[tuple[int, int]]) -> Arrays:
        """Read the rows of ``extents`` (first, past the last), none of which crosses a shard, one after the other."""
        total = sum(stop - start for start, stop in extents)
        arrays = {
            name: np.empty((total, *field.row_shape), dtype=field.dtype) for name, field in self.fields[0].items()
        }
        shard_of = np.searchsorted(self.starts, [start for start, _ in extents], side="right") - 1
        for name, array in arrays.items():
            buffer = array.reshape(-1).view(np.uint8).data
            position = 0
            for (start, stop), shard in zip(extents, shard_of, strict=True):
                field = self.fields[shard][name]
                size = (stop - start) * field.row_bytes
                offset = field.offset + (start - int(self.starts[shard])) * field.row_bytes
                self._read(shard, buffer[position : position + size], offset)
                position += size
        return arrays

    def _read(self, shard: int, buffer: memoryview, offset: int) -> None:
        while len(buffer):
            try:
                count = os.preadv(self.handles[shard], [buffer], offset)
            except OSError as error:
                raise DataError(f"{self.paths[shard]}: cannot be read ({error.strerror})") from error
            if count == 0:
                raise DataError(f"{self.paths[shard]}: breaks off at byte {offset}; prepare the data again")
            buffer, offset = buffer[count:], offset + count


def _open(path: Path, shard: Shard, stack: ExitStack) -> int:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); the manifest lists it") from error
    stack.callback(os.close, handle)
    size = os.fstat(handle).st_size
    if size != shard.bytes:
        raise DataError(f"{path}: has {size:,} bytes; the manifest says {shard.bytes:,}: prepare the data again")
    return handle


def _read_header(path: Path, handle: int, shard: Shard) -> dict[str, _Field]:
    length = min(int.from_bytes(os.pread(handle, 8, 0), "little"), shard.bytes)
    try:
        header = json.loads(os.pread(handle, length, 8))
        header.pop("__metadata__", None)
        fields = {}
        for name in sorted(header):
            dtype, (rows, *shape) = np.dtype(_DTYPES[header[name]["dtype"]]), header[name]["shape"]
            if rows != shard.rows:
                raise ValueError(f"{name} has {rows:,} rows; the manifest says {shard.rows:,}")
            row_bytes = dtype.itemsize * math.prod(shape)
            fields[name] = _Field(8 + length + header[name]["data_offsets"][0], row_bytes, tuple(shape), dtype)
        return fields
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: is no prepared shard ({error})") from error
