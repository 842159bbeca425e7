"""Reading shards that lie in a bucket: a block comes when a row of it is first needed, and is kept in a local cache."""

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dkan_core.data.format import integrity
from dkan_core.data.format.block_cache import BlockCache, CachedShard, RemoteSource, create_cache
from dkan_core.data.format.blocks import Int64
from dkan_core.data.format.integrity import Content, block_count
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Arrays, Shard
from dkan_core.errors import DataError
from dkan_core.utils.hints import counted
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.paths import filesystem

# Enough of a shard for its header, which takes some 300 bytes.
HEADER_BYTES = 4096
# Blocks that are asked for at once: a bucket answers one request slowly and many as fast.
FETCHED_BLOCKS = 64

Block = tuple[int, int]
"""A shard, in the order of the split, and the number of a block there."""

logger = logging.getLogger(__name__)


def open_remote(uri: str, shards: Sequence[Shard], folder: Path, cache_bytes: int | None) -> None:
    """Make a local folder from which processes read remote shards; of these, only the headers are downloaded.

    Args:
        uri: Where the manifest lies.
        shards: What it lists and is needed.
        folder: A local folder.
        cache_bytes: Bytes of blocks to keep there. Default: half of what is free.

    Raises:
        DataError: A shard is missing, is not as long as the manifest says, or cannot be reached.
    """
    source = create_cache(folder, uri, shards, cache_bytes)
    _check_sizes(source)
    names = [f"{source.uri}/{shard.path}" for shard in shards]
    stops = [min(HEADER_BYTES, shard.bytes) for shard in shards]
    for shard, header in zip(shards, fetch_ranges(names, [0] * len(names), stops), strict=True):
        with (folder / shard.path).open("r+b") as file:
            file.write(header)
    size = sum(shard.bytes for shard in shards)
    kept = "all" if source.cache_bytes >= size else "some"
    logger.info(
        "%s: %.2f GB are read when they are needed; up to %.2f GB are kept in %s",
        uri,
        size / 1e9,
        source.cache_bytes / 1e9,
        folder,
    )
    if kept == "some":
        logger.warning("the cache does not hold all of it: what exceeds it is read again in each epoch")


def _check_sizes(source: RemoteSource) -> None:
    fs, _ = filesystem(source.uri)
    with readable(source.uri):
        fs.invalidate_cache()
        for split in dict.fromkeys(shard.path.partition("/")[0] for shard in source.shards):
            _, folder = filesystem(f"{source.uri}/{split}")
            try:
                listed = {each["name"].rpartition("/")[2]: each["size"] for each in fs.ls(folder, detail=True)}
            except FileNotFoundError:
                listed = {}
            for shard in source.shards:
                if shard.path.startswith(f"{split}/"):
                    _check_size(f"{source.uri}/{shard.path}", shard, listed.get(shard.path.partition("/")[2]))


def _check_size(name: str, shard: CachedShard, size: int | None) -> None:
    if size is None:
        raise DataError(f"{name}: no such file; expected a folder that `dkan prepare` wrote")
    if size != shard.bytes:
        blocks = f"{block_count(size):,} of {counted(block_count(shard.bytes), 'block')}"
        raise DataError(
            f"{name}: has {size:,} bytes; the manifest says {shard.bytes:,} ({blocks}); "
            "restore the file or prepare the data again"
        )


def fetch_ranges(names: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
    """Return the bytes of some ranges of remote files, asked for at the same time.

    Raises:
        DataError: A file cannot be read, or ends before.
    """
    if not names:
        return []
    fs, _ = filesystem(names[0])
    with readable(names[0]):
        found: list[bytes] = fs.cat_ranges(
            [filesystem(name)[1] for name in names], list(starts), list(stops), on_error="raise"
        )
    for name, start, stop, content in zip(names, starts, stops, found, strict=True):
        if len(content) != stop - start:
            raise integrity.truncated(name, start + len(content))
    return found


class RemoteShardReader(ShardReader):
    """Reads rows of a split from a bucket, as ``ShardReader`` does from files.

    A block that is damaged is read once more: a transfer may go wrong. What is damaged there comes damaged again.

    Args:
        folder: Local folder that ``open_remote`` has made.
        source: What it is of.
        shards: What the manifest lists of the split.
        content: What it says of their arrays.
    """

    def __init__(self, folder: Path, source: RemoteSource, shards: Sequence[Shard], content: Content) -> None:
        super().__init__(folder, shards, content, writable=True)
        self.names = [f"{source.uri}/{shard.path}" for shard in shards]
        for verifier, name in zip(self._verifiers, self.names, strict=True):
            verifier.path = name
        self._cache = BlockCache(folder, source, [shard.path for shard in shards])
        self._uncached: dict[Block, bytes] = {}
        """Blocks of the rows that are being read, for which the cache has no room."""
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        """Close the files and the index of the cache."""
        self._cache.close()
        super().close()

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Read the rows of ``extents`` (first, past the last), one after the other."""
        with self._one_at_a_time:
            try:
                return super().gather(extents, out)
            finally:
                self._uncached.clear()

    def damaged_blocks(self) -> Iterator[str]:
        """Read and verify every block in the bucket; yield what is wrong with each one that is damaged."""
        for shard, verifier in enumerate(self._verifiers):
            for start in range(0, len(verifier.hashes), FETCHED_BLOCKS):
                blocks = range(start, min(start + FETCHED_BLOCKS, len(verifier.hashes)))
                contents = self._fetch([(shard, block) for block in blocks])
                for block, content in zip(blocks, contents, strict=True):
                    try:
                        self._accept(shard, block, content)
                    except DataError as error:
                        yield str(error)
                self._uncached.clear()

    def _verify_blocks(self, blocks: Sequence[Block]) -> None:
        absent = [block for block in blocks if not self._cache.has(*block)]
        super()._verify_blocks([block for block in blocks if self._cache.has(*block)])
        for start in range(0, len(absent), FETCHED_BLOCKS):
            some = absent[start : start + FETCHED_BLOCKS]
            for (shard, block), content in zip(some, self._fetch(some), strict=True):
                self._accept(shard, block, content)

    def _verify_block(self, shard: int, block: int) -> None:
        """Verify a block that the cache has; one that was damaged there comes from the bucket."""
        try:
            super()._verify_block(shard, block)
        except DataError as error:
            logger.warning("%s; reading it once more", error)
            (content,) = self._fetch([(shard, block)])
            self._accept(shard, block, content, may_read_again=False)

    def _fetch(self, blocks: Sequence[Block]) -> Iterator[bytes]:
        extents = [self._verifiers[shard].extent(block) for shard, block in blocks]
        names = [self.names[shard] for shard, _ in blocks]
        return iter(fetch_ranges(names, [start for start, _ in extents], [stop for _, stop in extents]))

    def _accept(self, shard: int, block: int, content: bytes, *, may_read_again: bool = True) -> None:
        """Verify a block that has come, and keep it where there is room."""
        verifier = self._verifiers[shard]
        first, stop = verifier.extent(block)
        try:
            verifier.verify(block, lambda offset, size: content[offset - first : offset - first + size])
        except DataError as error:
            if not may_read_again:
                raise
            logger.warning("%s; reading it once more", error)
            (again,) = self._fetch([(shard, block)])
            return self._accept(shard, block, again, may_read_again=False)
        is_kept = self._cache.add(shard, block, self.handles[shard], first, content)
        if self._memory:
            self._memory[shard][first:stop] = np.frombuffer(content, np.uint8)
        if is_kept or self._memory:
            self._verified.add(shard, block)
        else:
            self._uncached[shard, block] = content
        return None

    def _copy_natively(self, pieces: Int64, arrays: Arrays) -> bool:
        return not self._uncached and super()._copy_natively(pieces, arrays)

    def _read(self, shard: int, buffer: memoryview, offset: int) -> None:
        size, position = integrity.BLOCK_BYTES, 0
        while position < len(buffer):
            block, inside = divmod(offset + position, size)
            count = min(size - inside, len(buffer) - position)
            content = self._uncached.get((shard, block))
            part = buffer[position : position + count]
            if content is None:
                super()._read(shard, part, offset + position)
            else:
                part[:] = content[inside : inside + count]
            position += count
