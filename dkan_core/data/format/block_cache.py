"""A local cache of remote shards: files of their size, in which only the blocks take room that were read.

Processes of a run share it without waiting for each other: a block that is there stays there until the end. What
exceeds the limit is read anew each time. As every epoch reads all blocks, in another order, no rule of what to drop
would keep more of what is needed next.

Shape suffixes: B blocks of all shards of all splits.
"""

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

SOURCE, INDEX = "remote.json", "cached-blocks"

FREE_SHARE = 0.5
"""Of the room in the folder for temporary files, for the cache where no limit is given."""


class CachedShard(Schema):
    """A shard as the cache knows it."""

    path: str
    """As in the manifest."""

    bytes: int
    """Size of the file."""

    blocks: int
    """How many it has."""


class RemoteSource(Schema):
    """Where shards are that lie in no local folder, and what of them may be kept in one."""

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
    (folder / INDEX).write_bytes(bytes(sum(shard.blocks for shard in cached)))
    write_json(folder / SOURCE, source.model_dump(mode="json"))
    return source


def read_source(folder: Path) -> RemoteSource | None:
    """Return where the shards of a folder are, None where they are in it."""
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
        self._sizes_B = np.concatenate([_block_sizes(shard) for shard in source.shards])
        self._file = (folder / INDEX).open("r+b")
        self._mapped = mmap.mmap(self._file.fileno(), 0)
        self._is_there_B: npt.NDArray[np.uint8] = np.frombuffer(self._mapped, np.uint8)

    def has(self, shard: int, block: int) -> bool:
        """Tell whether a block is there."""
        return bool(self._is_there_B[self._first[shard] + block])

    def add(self, shard: int, block: int, handle: int, offset: int, content: bytes) -> bool:
        """Write a block into its file, unless the cache or the disk is full; tell whether it is there now.

        Args:
            shard: In the order of the split.
            block: Its number there.
            handle: Descriptor of the shard's file.
            offset: Where the block begins.
            content: Its bytes, verified.
        """
        # The lock of a process that is killed goes with it.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if int(self._sizes_B @ self._is_there_B) + len(content) > self._limit:
                return False
            written = 0
            while written < len(content):
                written += os.pwrite(handle, content[written:], offset + written)
            # Last: who finds the mark finds the bytes.
            self._is_there_B[self._first[shard] + block] = 1
        except OSError:
            # Full, or broken: the block is read from the bucket each time, which needs no disk.
            return False
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Close the index; the blocks stay for others."""
        del self._is_there_B
        self._mapped.close()
        self._file.close()


def _block_sizes(shard: CachedShard) -> npt.NDArray[np.int64]:
    sizes = np.full(shard.blocks, integrity.BLOCK_BYTES, np.int64)
    sizes[-1] = shard.bytes - sizes[:-1].sum()
    return sizes
