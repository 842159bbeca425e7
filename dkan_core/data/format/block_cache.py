"""A local cache of remote shards: sparse files of their size, which hold only the blocks that were read.

Processes of a run share the cache without waiting for each other, because a cached block is never removed. Every
epoch reads all blocks, in another order, so no eviction rule would do better. Blocks beyond the limit are read from
the bucket each time: whole and verified the first time, when the hashes of their parts are noted, and from then on
only the parts that a batch needs.

Shape suffixes: B blocks of all shards of all splits.
"""

import enum
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dkan_core.data.format import integrity
from dkan_core.data.format.shard_writer import Shard
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import write_json
from dkan_core.utils.storage.paths import path_inside

# The index file begins with the number of cached bytes; one mark per block follows.
SOURCE, INDEX, HASHES = "remote.json", "cached-blocks", "part-hashes"
USED_BYTES = 8
HASHES_OF_BLOCK = integrity.PARTS * integrity.PART_HASH_BYTES

FREE_SHARE = 0.5
"""Share of the free space in the temporary folder that the cache may take where no limit is given."""


class Mark(enum.IntEnum):
    """State of a block in the cache."""

    NOTHING = 0
    BLOCK = 1
    HASHES = 2


class CachedShard(Schema):
    """A shard as the cache knows it."""

    path: str
    """As in the manifest."""

    bytes: int
    """Size of the file."""

    blocks: int
    """How many it has."""


class RemoteSource(Schema):
    """Location of shards that are in no local folder, and how much of them may be cached."""

    uri: str
    """Folder of the manifest."""

    cache_bytes: Annotated[int, Field(ge=0)]
    """Bytes of blocks that are kept."""

    shards: list[CachedShard]
    """Those of all splits, in the order in which the index has their blocks."""


def create_cache(folder: Path, uri: str, shards: Sequence[Shard], cache_bytes: int | None) -> RemoteSource:
    """Make an empty cache.

    Args:
        folder: Local folder for it.
        uri: Where the manifest lies.
        shards: What it lists.
        cache_bytes: Limit. Default: half of what is free there.
    """
    limit = int(shutil.disk_usage(folder).free * FREE_SHARE) if cache_bytes is None else cache_bytes
    cached = [CachedShard(path=each.path, bytes=each.bytes, blocks=len(each.blocks)) for each in shards]
    source = RemoteSource(uri=uri.rstrip("/"), cache_bytes=limit, shards=cached)
    for shard in shards:
        path = path_inside(folder, shard.path)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.truncate(shard.bytes)
    (folder / INDEX).write_bytes(bytes(USED_BYTES + sum(shard.blocks for shard in cached)))
    (folder / HASHES).touch()
    write_json(folder / SOURCE, source.model_dump(mode="json"))
    return source


def read_source(folder: Path) -> RemoteSource | None:
    """Return where the remote shards of a cache folder are; None if the folder holds the shards itself."""
    path = folder / SOURCE
    return read_json(RemoteSource, path.read_bytes(), str(path)) if path.exists() else None


class BlockCache:
    """Which blocks of a split are there, in memory that all processes share.

    Args:
        folder: That of the cache.
        source: What it is of.
        paths: The shards of the split, as the manifest lists them.
    """

    def __init__(self, folder: Path, source: RemoteSource, paths: Sequence[str]) -> None:
        counts = [shard.blocks for shard in source.shards]
        firsts = dict(zip((shard.path for shard in source.shards), np.cumsum([0, *counts]).tolist(), strict=False))
        self._first = [firsts[path] for path in paths]
        self._limit = source.cache_bytes
        self._file = (folder / INDEX).open("r+b")
        self._hashes = (folder / HASHES).open("r+b", buffering=0)
        self._mapped = mmap.mmap(self._file.fileno(), 0)
        self._used: npt.NDArray[np.int64] = np.frombuffer(self._mapped, np.int64, 1)
        self._mark_B: npt.NDArray[np.uint8] = np.frombuffer(self._mapped, np.uint8, offset=USED_BYTES)

    def mark(self, shard: int, block: int) -> Mark:
        """Return the state of a block."""
        return Mark(self._mark_B[self._first[shard] + block])

    def add(self, shard: int, block: int, handle: int, offset: int, content: bytes) -> bool:
        """Write a block into its file, unless the cache or the disk is full; return whether it is there now.

        Args:
            shard: In the order of the split.
            block: Its number there.
            handle: Descriptor of the shard's file.
            offset: Where the block begins.
            content: Its bytes, verified.
        """
        index = self._first[shard] + block
        # A file lock: the system releases it when its process is killed.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            # A cached block that turned out damaged is overwritten and takes no further space.
            more = 0 if self._mark_B[index] == Mark.BLOCK else len(content)
            if self._used[0] + more > self._limit:
                return False
            written = 0
            while written < len(content):
                written += os.pwrite(handle, content[written:], offset + written)
            self._used += more
            # The mark is set last, so that a marked block is always complete.
            self._mark_B[index] = Mark.BLOCK
        except OSError:
            # The disk is full or broken. The block is then read from the bucket each time, which needs no disk.
            return False
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def note(self, shard: int, block: int, content: bytes) -> None:
        """Note the hashes of the parts of a verified block that is not kept, unless the disk is full."""
        size = integrity.part_bytes()
        hashes = b"".join(integrity.part_hash(content[start : start + size]) for start in range(0, len(content), size))
        index = self._first[shard] + block
        try:
            written = os.pwrite(self._hashes.fileno(), hashes, index * HASHES_OF_BLOCK)
        except OSError:
            written = 0
        self._mark_B[index] = Mark.HASHES if written == len(hashes) else Mark.NOTHING

    def part_hashes(self, shard: int, block: int) -> list[bytes]:
        """Return the hashes of the parts of a block that were noted."""
        index, size = self._first[shard] + block, integrity.PART_HASH_BYTES
        found = os.pread(self._hashes.fileno(), HASHES_OF_BLOCK, index * HASHES_OF_BLOCK)
        return [found[start : start + size] for start in range(0, len(found), size)]

    def close(self) -> None:
        """Close the index; the blocks stay for others."""
        del self._used, self._mark_B
        self._mapped.close()
        self._hashes.close()
        self._file.close()
