"""Prepared shards: safetensors files of row-major arrays, written in a global shuffle and read in pieces.

Shuffling needs one pass and little memory: each row's hash decides its place. Its high bits name the shard, so
rows are appended to one spill file a shard as they come; then each spill file is sorted by hash on its own.
"""

import hashlib
import io
import itertools
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field as Constraint
from safetensors.numpy import save

from dkan_core.data.hashing import UInt64
from dkan_core.data.integrity import (
    BlockVerifier,
    Content,
    Field,
    Layout,
    block_count,
    block_hashes,
    read_exactly,
)
from dkan_core.errors import DataError
from dkan_core.machine import allow_open_files
from dkan_core.schemas import Schema, read_json
from dkan_core.storage.paths import path_inside

SHARD_BYTES = 256 << 20
OTHER_OPEN_FILES = 256
KEY = "shuffle_key"
MAX_HEADER_BYTES = 1 << 16
"""The four arrays of a shard take some 300."""

Arrays = dict[str, npt.NDArray[Any]]


SHA256 = Annotated[str, Constraint(pattern="^[0-9a-f]{64}$")]
ShardPath = Annotated[
    str, Constraint(pattern=r"^(train|valid|test)/[A-Za-z0-9][A-Za-z0-9_.-]*\.safetensors$", max_length=200)
]


class Shard(Schema):
    """A prepared file as the manifest lists it."""

    path: ShardPath
    """Relative to the manifest: ``SPLIT/NAME.safetensors``."""

    rows: Annotated[int, Constraint(ge=1, lt=1 << 48)]
    bytes: Annotated[int, Constraint(ge=1, lt=1 << 56)]
    sha256: SHA256
    blocks: tuple[SHA256, ...] = ()
    """SHA-256 of each block of ``BLOCK_BYTES``; format version 1 has none."""


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
    return Shard(
        path=listed_as,
        rows=len(order),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        blocks=tuple(block_hashes(io.BytesIO(content))),
    )


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


_DTYPES = {"uint8": "U8", "int32": "I32", "float16": "F16", "float32": "F32"}
"""How safetensors calls the types."""


class ShardReader:
    """Reads rows of a split by their number, counted through its shards.

    Reads go through ``preadv`` into fresh buffers: a file that vanishes is an error that names it, not a bus error.
    Nothing of a block is returned before it was verified (see ``dkan_core.data.integrity``).

    Args:
        root: Folder of the manifest; no shard may lie outside.
        shards: What the manifest lists.
        content: What it says of their arrays.
    """

    def __init__(self, root: Path, shards: Sequence[Shard], content: Content) -> None:
        self.paths = [path_inside(root, shard.path) for shard in shards]
        allow_open_files(len(shards) + OTHER_OPEN_FILES)
        self.starts = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        with ExitStack() as stack:
            self.handles = [_open(path, shard, stack) for path, shard in zip(self.paths, shards, strict=True)]
            opened = list(zip(self.paths, self.handles, shards, strict=True))
            self.fields = [_read_header(path, handle, shard, content.layout) for path, handle, shard in opened]
            self._verifiers = [
                BlockVerifier(path, handle, shard.bytes, shard.blocks or (shard.sha256,), fields, content)
                for (path, handle, shard), fields in zip(opened, self.fields, strict=True)
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
                self._verifiers[shard].check(offset, size)
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
        # Not to wait for ever where a pipe lies in the place of a file.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); the manifest lists it") from error
    stack.callback(os.close, handle)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path}: is no regular file; the manifest lists it")
    if found.st_size != shard.bytes:
        raise DataError(
            f"{path}: has {found.st_size:,} bytes; the manifest says {shard.bytes:,} "
            f"({block_count(found.st_size):,} blocks of {block_count(shard.bytes):,}): prepare the data again"
        )
    return handle


class _Array(Schema):
    """An array as the header of a safetensors file describes it; offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Header(Schema):
    """The header of a shard."""

    numeric: _Array | None = None
    categorical: _Array | None = None
    labels: _Array | None = None
    weight: _Array | None = None


def _read_header(path: Path, handle: int, shard: Shard, layout: Layout) -> dict[str, Field]:
    """Return where each array lies, after a check that they are those of the manifest and fill the file."""
    length = int.from_bytes(read_exactly(path, handle, 0, min(8, shard.bytes)), "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, shard.bytes - 8):
        raise DataError(f"{path}: is no prepared shard (a header of {length:,} bytes)")
    header = read_json(_Header, read_exactly(path, handle, 8, length), f"{path}: header")
    found = {name: array for name, array in header if array is not None}
    position, fields = 8 + length, {}
    for name, array in sorted(found.items(), key=lambda item: item[1].data_offsets):
        shape, kind = layout.get(name, ((), ""))
        expected = (_DTYPES.get(kind), (shard.rows, *shape))
        if (array.dtype, array.shape) != expected:
            raise DataError(f"{path}: array {name!r} is {array.dtype} {array.shape}; the manifest says {expected}")
        dtype = np.dtype(kind)
        row_bytes = dtype.itemsize * math.prod(shape)
        field = Field(position, row_bytes * shard.rows, row_bytes, shape, dtype)
        if array.data_offsets != (position - 8 - length, position - 8 - length + field.size):
            raise DataError(
                f"{path}: array {name!r} lies at {array.data_offsets}; expected {field.size:,} bytes in all"
            )
        fields[name] = field
        position += field.size
    if set(fields) != set(layout) or position != shard.bytes:
        raise DataError(
            f"{path}: holds {', '.join(fields) or 'nothing'} in {position:,} bytes; "
            f"the manifest says {', '.join(layout)} in {shard.bytes:,}"
        )
    return fields
