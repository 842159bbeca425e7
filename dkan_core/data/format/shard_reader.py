"""Reading prepared shards in pieces; nothing of a block is returned before it was verified.

Shape suffixes: E pieces, A arrays of a row.
"""

import itertools
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dkan_core.data.format import integrity
from dkan_core.data.format.integrity import BlockVerifier, read_into
from dkan_core.data.format.layout import INDICES, OFFSETS, SPARSE, Content, Field, Layout, stored_layout
from dkan_core.data.format.pieces import PieceCopier
from dkan_core.data.format.shard_writer import Shard
from dkan_core.data.format.sparse_rows import SparseRows, stored_length
from dkan_core.data.format.verified_blocks import Block, VerifiedBlocks
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Arrays, Int64
from dkan_core.utils.resources import allow_open_files
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.paths import path_inside

# Reserve for what a process opens later (libraries, pipes, logs) when the limit on open files is raised: 256 GB of
# shards exceed the usual limit of 1,024.
OTHER_OPEN_FILES = 256
# The five arrays of a shard take some 300.
MAX_HEADER_BYTES = 1 << 16

# How safetensors calls the types.
_DTYPES = {"uint8": "U8", "int32": "I32", "float16": "F16", "float32": "F32", "int64": "I64"}


class ShardReader:
    """Reads rows of a split by their number, counted through its shards.

    Reads go through ``pread``: a file that vanishes is an error that names it, not a bus error. Nothing of a block is
    returned before it was verified (see ``dkan_core.data.format.integrity``).

    Args:
        root: Folder of the manifest; no shard may lie outside.
        shards: What the manifest lists.
        content: What it says of their arrays.
        writable: Whether blocks are yet to be written into the files.
    """

    def __init__(self, root: Path, shards: Sequence[Shard], content: Content, *, writable: bool = False) -> None:
        self.paths = [path_inside(root, shard.path) for shard in shards]
        # Shards stay open, as those of other readers may: opening one for each piece would take longer than reading it.
        allow_open_files(len(os.listdir("/dev/fd")) + len(shards) + OTHER_OPEN_FILES)
        self.starts = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        with ExitStack() as stack:
            self.handles = [
                _open(path, shard, stack, writable=writable) for path, shard in zip(self.paths, shards, strict=True)
            ]
            opened = list(zip(self.paths, self.handles, shards, strict=True))
            every = [_read_header(path, handle, shard, content.layout) for path, handle, shard in opened]
            self._closer = stack.pop_all()
        self._verifiers = [
            BlockVerifier(path, shard.bytes, shard.blocks, fields, content)
            for (path, _, shard), fields in zip(opened, every, strict=True)
        ]
        self.fields = [{name: field for name, field in fields.items() if name in content.layout} for fields in every]
        self._sparse = self._sparse_rows(every, content.layout)
        self._verified = VerifiedBlocks([len(shard.blocks) for shard in shards])
        self._copier = PieceCopier(self.starts, self.handles, self.fields, list(self.fields[0]))
        self._memory: list[npt.NDArray[np.uint8]] = []
        self.threads = 1
        """Threads that read; more than one only where the processor would otherwise be idle."""

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return int(self.starts[-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays."""
        sparse = 0 if self._sparse is None else self._sparse.bytes // max(1, self.rows)
        return sum(field.row_bytes for field in self.fields[0].values()) + sparse

    def keep_in_memory(self) -> None:
        """Keep every block in memory once it was read and verified, and read rows from there."""
        # The system allocates memory when it is first written, so only what was read takes any.
        self._memory = [np.empty(verifier.size, np.uint8) for verifier in self._verifiers]
        self._copier.use_memory(self._memory)
        self._verified.clear()

    def close(self) -> None:
        """Close the files."""
        self._closer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def empty(self, rows: int) -> Arrays:
        """Return arrays for so many rows, with nothing in them yet."""
        arrays: Arrays = {name: np.empty((rows, *each.row_shape), each.dtype) for name, each in self.fields[0].items()}
        return arrays if self._sparse is None else {**arrays, SPARSE: np.empty((rows, self._sparse.width), np.int32)}

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Read the rows of ``extents`` (first, past the last), none of which crosses a shard, one after the other.

        Args:
            extents: Ranges of rows.
            out: Arrays of exactly so many rows, to read them into. Default: new ones.

        Raises:
            DataError: A block is damaged, or a file cannot be read; the message names both.
        """
        pieces = np.asarray(extents, np.int64).reshape(-1, 2)
        arrays = self.empty(int((pieces[:, 1] - pieces[:, 0]).sum())) if out is None else out
        if not self._verified.is_complete:
            self._require_pieces(pieces)
        if not self._copy_natively(pieces, arrays):
            self._copy(pieces, arrays)
        if self._sparse is not None:
            self._sparse.gather(pieces, arrays[SPARSE])
        return arrays

    def _sparse_rows(self, fields: Sequence[Mapping[str, Field]], layout: Layout) -> SparseRows | None:
        """Return what reads the codes of lists and bit vectors, where rows have such columns."""
        if SPARSE not in layout:
            return None
        of_both = [{name: each[name] for name in (OFFSETS, INDICES)} for each in fields]
        return SparseRows(self.paths, self.starts, of_both, layout[SPARSE][0][0], self._require, self._read)

    def _require_pieces(self, pieces: Int64) -> None:
        """Verify the blocks of some pieces that were not verified before."""
        first_E, stop_E = pieces[pieces[:, 0] < pieces[:, 1]].T
        shard_E = np.searchsorted(self.starts, first_E, side="right") - 1
        bytes_A, begin_EA = self._copier.row_bytes_A, self._copier.offsets_SA[shard_E]
        start_EA = begin_EA + (first_E - self.starts[shard_E])[:, None] * bytes_A
        stop_EA = begin_EA + (stop_E - self.starts[shard_E])[:, None] * bytes_A
        shard_EA = np.repeat(shard_E, len(bytes_A))
        self._require(shard_EA, start_EA.reshape(-1), stop_EA.reshape(-1))

    def _require(self, shard_N: Int64, start_N: Int64, stop_N: Int64) -> None:
        """Verify the blocks of some ranges of bytes that were not verified before."""
        if not self._verified.is_complete:
            self._verify_blocks(self._verified.missing(shard_N, start_N, stop_N))

    def _verify_blocks(self, blocks: Mapping[Block, Sequence[int]]) -> None:
        """Verify blocks; each comes with the numbers of the parts that will be read."""
        for shard, block in blocks:
            self._verify_block(shard, block)

    def _verify_block(self, shard: int, block: int) -> None:
        self._verifiers[shard].verify(block, partial(self._load, shard))
        self._verified.add(shard, block)

    def damaged_blocks(self) -> Iterator[str]:
        """Read and verify every block; yield what is wrong with each one that is damaged."""
        for shard, verifier in enumerate(self._verifiers):
            for block in range(len(verifier.hashes)):
                try:
                    self._verify_block(shard, block)
                except DataError as error:
                    yield str(error)

    def _copy_natively(self, pieces: Int64, arrays: Arrays) -> bool:
        return self._copier.copy(pieces, arrays, self.threads)

    def _copy(self, pieces: Int64, arrays: Arrays) -> None:
        """Copy pieces in Python, with the result of the native extension."""
        shards = np.searchsorted(self.starts, pieces[:, 0], side="right") - 1
        offsets = np.concatenate([[0], np.cumsum(pieces[:, 1] - pieces[:, 0])]).tolist()
        for name in self.fields[0]:
            row_bytes, buffer = self.fields[0][name].row_bytes, arrays[name].reshape(-1).view(np.uint8).data
            for shard, row, (start, stop) in zip(shards, pieces[:, 0], itertools.pairwise(offsets), strict=True):
                offset = self.fields[shard][name].offset + int(row - self.starts[shard]) * row_bytes
                self._read(shard, buffer[start * row_bytes : stop * row_bytes], offset)

    def _load(self, shard: int, offset: int, size: int) -> memoryview:
        """Read bytes of a shard to verify them, into memory where they are kept there."""
        content = self._memory[shard][offset : offset + size] if self._memory else np.empty(size, np.uint8)
        read_into(content.data, self.paths[shard], self.handles[shard], offset)
        return content.data

    def _read(self, shard: int, buffer: memoryview, offset: int) -> None:
        if self._memory:
            buffer[:] = self._memory[shard][offset : offset + len(buffer)].data
        else:
            read_into(buffer, self.paths[shard], self.handles[shard], offset)


def _open(path: Path, shard: Shard, stack: ExitStack, *, writable: bool) -> int:
    try:
        # O_NONBLOCK, because opening a pipe in place of the file would block forever.
        handle = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); the manifest lists it") from error
    stack.callback(os.close, handle)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path}: is not a regular file; the manifest lists it")
    if fault := integrity.wrong_size(found.st_size, shard.bytes):
        raise DataError(f"{path}: {fault}; prepare the data again")
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
    group: _Array | None = None
    sparse_offsets: _Array | None = None
    sparse_indices: _Array | None = None


def _read_header(path: Path, handle: int, shard: Shard, layout: Layout) -> dict[str, Field]:
    """Return where each array lies, after a check that they are those of the manifest and fill the file."""
    length = int.from_bytes(_read_bytes(path, handle, 0, min(8, shard.bytes)), "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, shard.bytes - 8):
        raise DataError(f"{path}: is not a prepared shard (a header of {length:,} bytes)")
    header = read_json(_Header, _read_bytes(path, handle, 8, length), f"{path}: header")
    found = {name: array for name, array in header if array is not None}
    position, fields, layout = 8 + length, {}, stored_layout(layout)
    for name, array in sorted(found.items(), key=lambda item: item[1].data_offsets):
        shape, kind = layout.get(name, ((), ""))
        count = stored_length(name, shard.rows, array.shape)
        expected = (_DTYPES.get(kind), (count, *shape))
        if (array.dtype, array.shape) != expected:
            raise DataError(f"{path}: array {name!r} is {array.dtype} {array.shape}; the manifest says {expected}")
        dtype = np.dtype(kind)
        row_bytes = dtype.itemsize * math.prod(shape)
        field = Field(position, row_bytes * count, row_bytes, shape, dtype)
        if array.data_offsets != (position - 8 - length, position - 8 - length + field.size):
            raise DataError(
                f"{path}: array {name!r} lies at {array.data_offsets}; expected {field.size:,} bytes in all"
            )
        if position % dtype.itemsize:
            # Blocks begin at multiples of every item size, so that verification can check a block's values one by one.
            raise DataError(
                f"{path}: array {name!r} begins at byte {position:,}; expected a multiple of {dtype.itemsize}"
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


def _read_bytes(path: Path, handle: int, offset: int, size: int) -> bytes:
    content = bytearray(size)
    read_into(memoryview(content), path, handle, offset)
    return bytes(content)
