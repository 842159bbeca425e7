"""Reading prepared shards in pieces; nothing of a block is returned before it was verified."""

import math
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from dkan_core.data.format.integrity import BlockVerifier, Content, Field, Layout, block_count, read_exactly
from dkan_core.data.format.shard_writer import Arrays, Shard
from dkan_core.errors import DataError
from dkan_core.utils.resources import allow_open_files
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.paths import path_inside

# Left for what a process has open besides shards (libraries, pipes, logs). The usual limit is 1,024 in all, which
# 256 GB of shards exceed.
OTHER_OPEN_FILES = 256
# The four arrays of a shard take some 300.
MAX_HEADER_BYTES = 1 << 16

# How safetensors calls the types.
_DTYPES = {"uint8": "U8", "int32": "I32", "float16": "F16", "float32": "F32"}


class ShardReader:
    """Reads rows of a split by their number, counted through its shards.

    Reads go through ``preadv`` into fresh buffers: a file that vanishes is an error that names it, not a bus error.
    Nothing of a block is returned before it was verified (see ``dkan_core.data.format.integrity``).

    Args:
        root: Folder of the manifest; no shard may lie outside.
        shards: What the manifest lists.
        content: What it says of their arrays.
    """

    def __init__(self, root: Path, shards: Sequence[Shard], content: Content) -> None:
        self.paths = [path_inside(root, shard.path) for shard in shards]
        # Shards stay open: opening one for each piece would take longer than reading it.
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

    def __exit__(self, *_: object) -> None:
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
                raise DataError(f"{self.paths[shard]}: is truncated at byte {offset}; prepare the data again")
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
        raise DataError(f"{path}: is not a regular file; the manifest lists it")
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
        raise DataError(f"{path}: is not a prepared shard (a header of {length:,} bytes)")
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
    # Every byte belongs to an array: a file with a gap or a tail was not written by dkan.
    if set(fields) != set(layout) or position != shard.bytes:
        raise DataError(
            f"{path}: holds {', '.join(fields) or 'nothing'} in {position:,} bytes; "
            f"the manifest says {', '.join(layout)} in {shard.bytes:,}"
        )
    return fields
