"""Damage of shards, noticed before a row is used: blocks that do not match their hashes, impossible values.

The manifest lists the SHA-256 of each block of a shard, and its fingerprint covers the hashes. A process verifies a
block when it first reads any of it; later reads of that block cost nothing more.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dkan_core.config.prepare import MAX_WEIGHT
from dkan_core.data.encoding.preprocessor import SCORE_LIMIT
from dkan_core.data.format.layout import INDICES, OFFSETS, Content, Field
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted

# Part of format version 2. Smaller blocks would mean a larger manifest (67 bytes a block), larger ones a slower start:
# the first batch touches as many blocks as it has pieces.
BLOCK_BYTES = 1 << 20
# Parts of a block, in which blocks that were verified before are fetched. A piece of 48 KiB (``loading.order``) begins
# and ends anywhere, so 64 KiB are fetched for it; the hashes of the parts take 512 bytes per block.
PARTS = 64
PART_HASH_BYTES = 8


def block_count(size: int) -> int:
    """Return how many blocks a file of ``size`` bytes has."""
    return -(-size // BLOCK_BYTES)


def wrong_size(found: int, expected: int) -> str:
    """Return how a shard's size differs from the manifest; empty if it does not.

    >>> wrong_size(100, 2_000_000)
    'has 100 bytes; the manifest says 2,000,000 (1 of 2 blocks)'
    """
    if found == expected:
        return ""
    blocks = f"{block_count(found):,} of {counted(block_count(expected), 'block')}"
    return f"has {found:,} bytes; the manifest says {expected:,} ({blocks})"


def truncated(path: str | Path, offset: int) -> DataError:
    """Return the error for a file that ends at ``offset``, before the end that the manifest gives."""
    block = offset // BLOCK_BYTES
    return DataError(f"{path}: is truncated at byte {offset:,}, in block {block}; prepare the data again")


# SHA-256, because a CRC detects only accidental damage, and SHA-256 is the standard library's fastest cryptographic
# hash on processors with SHA instructions: 1.8 GB/s a core here, BLAKE2b and SHA-512 0.8 (CRC-32 2.9).
def block_hashes(file: BinaryIO) -> Iterator[str]:
    """Yield the SHA-256 of each block of a file."""
    while block := file.read(BLOCK_BYTES):
        yield hashlib.sha256(block).hexdigest()


class HashingFile:
    """Writes to a file, and hashes the whole and each block of it.

    Args:
        file: What to write to, from its beginning.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._blocks: list[str] = []

    def write(self, content: bytes | memoryview) -> None:
        """Write bytes behind what is there."""
        self.file.write(content)
        self._whole.update(content)
        while content:
            piece = content[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._block.update(piece)
            self.size, content = self.size + len(piece), content[len(piece) :]
            if self.size % BLOCK_BYTES == 0:
                self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written."""
        return self._whole.hexdigest()

    def blocks(self) -> tuple[str, ...]:
        """Return the SHA-256 of each block; nothing can be written after that."""
        if self.size % BLOCK_BYTES:
            self._end_block()
        return tuple(self._blocks)


def part_bytes() -> int:
    """Return the size of the parts of a block; the last one of a shard may be shorter."""
    return BLOCK_BYTES // PARTS


def part_hash(content: bytes | memoryview) -> bytes:
    """Return the hash that a part is verified by later: the first 8 bytes of its SHA-256."""
    return hashlib.sha256(content).digest()[:PART_HASH_BYTES]


ReadBytes = Callable[[int, int], "bytes | memoryview"]
"""Returns bytes of a shard, given an offset and a length."""


class BlockVerifier:
    """Verifies the blocks of a shard.

    Args:
        path: The file or its URI, for messages.
        size: Its bytes.
        hashes: SHA-256 of each block.
        fields: Where its arrays lie.
        content: What they hold.
    """

    def __init__(
        self, path: Path | str, size: int, hashes: tuple[str, ...], fields: Mapping[str, Field], content: Content
    ) -> None:
        self.path: Path | str = path
        self.size = size
        self.hashes, self.fields, self.content = hashes, fields, content

    def extent(self, block: int) -> tuple[int, int]:
        """Return the first byte of a block and the one past its last."""
        start = block * BLOCK_BYTES
        return start, min(start + BLOCK_BYTES, self.size)

    def verify(self, block: int, read: ReadBytes) -> None:
        """Verify a block that ``read`` reads.

        Raises:
            DataError: It does not match its hash, or holds a value that the encoding cannot give.
        """
        start, stop = self.extent(block)
        content = read(start, stop - start)
        if hashlib.sha256(content).hexdigest() != self.hashes[block]:
            raise DataError(
                f"{self.path}: block {block} (bytes {start:,} to {stop:,}) is damaged or was altered: it does not "
                "match its hash in the manifest; restore the file or prepare the data again"
            )
        wrong = self._wrong_value(content, start)
        if wrong:
            raise DataError(f"{self.path}: {wrong}; prepare the data again")

    def _wrong_value(self, piece: bytes | memoryview, position: int) -> str:
        """Describe the first value that the encoding cannot produce; empty if there is none."""
        for name, field in self.fields.items():
            start = max(position, field.offset)
            stop = min(position + len(piece), field.offset + field.size)
            if start < stop:
                count = (stop - start) // field.dtype.itemsize
                values = np.frombuffer(piece, field.dtype, count, start - position)
                first = (start - field.offset) // field.dtype.itemsize
                wrong = _wrong_values(name, values, first, self.content)
                if wrong.any():
                    flat_index = int(np.argmax(wrong))
                    return _describe(name, values[flat_index], first + flat_index, self.content)
        return ""


def read_into(buffer: memoryview, path: Path, handle: int, offset: int) -> None:
    """Fill a buffer with the bytes of an open file from ``offset`` on; messages call the file ``path``.

    Raises:
        DataError: The file cannot be read, or ends before that.
    """
    while len(buffer):
        try:
            count = os.preadv(handle, [buffer], offset)
        except OSError as error:
            raise DataError(f"{path}: cannot be read at byte {offset:,} ({error.strerror})") from error
        if not count:
            raise truncated(path, offset)
        buffer, offset = buffer[count:], offset + count


def _wrong_values(name: str, values: npt.NDArray[Any], first: int, content: Content) -> npt.NDArray[np.bool_]:
    """Return for each value whether the encoding cannot produce it.

    Args:
        name: The array they are of.
        values: Consecutive values (K,) of it, row after row.
        first: Number of the first of them.
        content: What the array holds.

    Shape:
        - Output: ``(K,)``
    """
    wrong: npt.NDArray[np.bool_]
    if name == "labels":
        wrong = (values > 1) & (values != NOT_MEASURED)
    elif name == "categorical":
        limits = np.roll(np.array([codes for _, codes in content.cardinalities], np.uint32), -first)
        wrong = values.view(np.uint32) >= np.resize(limits, len(values))  # a negative code is a very large one
    elif name == OFFSETS:
        wrong = np.diff(values, prepend=max(0, int(values[0]))) < 0
    elif name == INDICES:
        wrong = (values < 1) | (values > content.sparse_codes)
    elif name == "weight":
        wrong = ~((values >= 0) & (values <= MAX_WEIGHT))
    elif values.dtype.kind == "f":
        wrong = np.abs(values) > SCORE_LIMIT
    else:
        wrong = np.zeros(len(values), bool)
    return wrong


def _describe(name: str, value: Any, flat_index: int, content: Content) -> str:
    """Return which value is wrong, and what was expected."""
    if name == "weight":
        return f"weight in row {flat_index:,} is {value}; expected 0 to {MAX_WEIGHT:g}"
    if name == OFFSETS:
        return f"array {name!r} holds {value} at {flat_index:,}; expected a number that is not below the one before"
    if name == INDICES:
        return f"array {name!r} holds {value} at {flat_index:,}; expected 1 to {content.sparse_codes:,}"
    row, index = divmod(flat_index, content.layout[name][0][0])
    if name == "labels":
        return f"label {content.labels[index]!r} in row {row:,} is {value}; expected 0, 1 or {NOT_MEASURED}"
    if name == "categorical":
        column, codes = content.cardinalities[index]
        return f"column {column!r} has code {value} in row {row:,}; expected 0 to {codes - 1}"
    return f"array {name!r} holds {value} in row {row:,}; expected {-SCORE_LIMIT:g} to {SCORE_LIMIT:g}, or NaN"
