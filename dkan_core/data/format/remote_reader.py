"""Reading shards in a bucket: a block is fetched when one of its rows is first needed, and kept in a local cache."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dkan_core.data.format import integrity
from dkan_core.data.format.block_cache import BlockCache, CachedShard, Mark, RemoteSource, create_cache
from dkan_core.data.format.layout import Content
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Shard
from dkan_core.data.format.verified_blocks import Block
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Arrays, Int64
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.paths import filesystem

# Enough of a shard for its header, which takes some 300 bytes.
HEADER_BYTES = 4096
# Blocks that are requested at once: one request to a bucket is slow, but many at once take as long as one.
FETCHED_BLOCKS = 64

Range = tuple[int, int, int]
"""A shard, in the order of the split, and the first byte there and the one past the last."""

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
    logger.info(
        "%s: %.2f GB are read when they are needed; up to %.2f GB are kept in %s",
        uri,
        size / 1e9,
        source.cache_bytes / 1e9,
        folder,
    )


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
    if fault := integrity.wrong_size(size, shard.bytes):
        raise DataError(f"{name}: {fault}; restore the file or prepare the data again")


def fetch_ranges(names: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
    """Return the bytes of some ranges of remote files, asked for at the same time.

    Raises:
        DataError: A file cannot be read, or ends before.
    """
    if not names:
        return []
    fs, _ = filesystem(names[0])
    with readable(names[0]):
        found: list[bytes | BaseException] = fs.cat_ranges(
            [filesystem(name)[1] for name in names], list(starts), list(stops), on_error="return"
        )
    return [_whole(*each) for each in zip(names, starts, stops, found, strict=True)]


def _whole(name: str, start: int, stop: int, content: bytes | BaseException) -> bytes:
    """Return what was fetched of a file; raise what failed, or a DataError where it is too short."""
    if isinstance(content, BaseException):
        with readable(name):
            raise content
    if len(content) != stop - start:
        raise integrity.truncated(name, start + len(content))
    return content


class RemoteShardReader(ShardReader):
    """Reads rows of a split from a bucket, as ``ShardReader`` does from files.

    A damaged block is read once more, in case the transfer failed; if the bucket holds it damaged, that is an error. A
    block for which the cache has no room is read whole the first time, to verify it. Later only the parts with rows of
    the batch are read, and verified by the hashes noted then.

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
        self._parts: dict[tuple[int, int], memoryview] = {}
        """Parts with the rows that are being read, of blocks that are not in the cache: by shard and number of the part
        there."""
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
                self._parts.clear()

    def damaged_blocks(self) -> Iterator[str]:
        """Read and verify every block in the bucket; yield what is wrong with each one that is damaged."""
        for shard, verifier in enumerate(self._verifiers):
            for start in range(0, len(verifier.hashes), FETCHED_BLOCKS):
                blocks = range(start, min(start + FETCHED_BLOCKS, len(verifier.hashes)))
                contents = self._fetch_blocks([(shard, block) for block in blocks])
                for block, content in zip(blocks, contents, strict=True):
                    try:
                        self._intact(shard, block, content)
                    except DataError as error:
                        yield str(error)

    def _verify_blocks(self, blocks: Mapping[Block, Sequence[int]]) -> None:
        whole, partly = dict[Block, Sequence[int]](), dict[Block, Sequence[int]]()
        for (shard, block), parts in blocks.items():
            mark = self._cache.mark(shard, block)
            if mark == Mark.HASHES and not self._memory:
                partly[shard, block] = parts
            elif mark != Mark.BLOCK or not self._is_intact_here(shard, block):
                whole[shard, block] = parts
        whole |= {block: blocks[block] for block in self._hold_parts(partly)}
        needed = list(whole)
        for start in range(0, len(needed), FETCHED_BLOCKS):
            some = needed[start : start + FETCHED_BLOCKS]
            for (shard, block), content in zip(some, self._fetch_blocks(some), strict=True):
                self._take(shard, block, self._intact(shard, block, content), whole[shard, block])

    def _is_intact_here(self, shard: int, block: int) -> bool:
        """Return whether a block in the cache matches its hash."""
        try:
            self._verify_block(shard, block)
        except DataError as error:
            logger.warning("%s; reading it once more", error)
            return False
        return True

    def _fetch(self, ranges: Sequence[Range]) -> list[bytes]:
        names = [self.names[shard] for shard, _, _ in ranges]
        return fetch_ranges(names, [start for _, start, _ in ranges], [stop for _, _, stop in ranges])

    def _fetch_blocks(self, blocks: Sequence[Block]) -> list[bytes]:
        return self._fetch([(shard, *self._verifiers[shard].extent(block)) for shard, block in blocks])

    def _intact(self, shard: int, block: int, content: bytes) -> bytes:
        """Return the verified bytes of a fetched block; a damaged one is read once more."""
        try:
            self._verify_content(shard, block, content)
        except DataError as error:
            logger.warning("%s; reading it once more", error)
            (content,) = self._fetch_blocks([(shard, block)])
            self._verify_content(shard, block, content)
        return content

    def _verify_content(self, shard: int, block: int, content: bytes) -> None:
        verifier = self._verifiers[shard]
        first, _ = verifier.extent(block)
        verifier.verify(block, lambda offset, size: content[offset - first : offset - first + size])

    def _take(self, shard: int, block: int, content: bytes, parts: Sequence[int]) -> None:
        """Keep a verified block where there is room, otherwise the parts that are needed now."""
        first, stop = self._verifiers[shard].extent(block)
        is_kept = self._cache.add(shard, block, self.handles[shard], first, content)
        if self._memory:
            self._memory[shard][first:stop] = np.frombuffer(content, np.uint8)
        if is_kept or self._memory:
            self._verified.add(shard, block)
            return
        self._cache.note(shard, block, content)
        size = integrity.part_bytes()
        for part in parts:
            # A copy, because a view would keep the whole block in memory.
            self._parts[shard, block * integrity.PARTS + part] = memoryview(content[part * size : (part + 1) * size])

    def _hold_parts(self, blocks: Mapping[Block, Sequence[int]]) -> set[Block]:
        """Fetch parts of blocks that were verified before, all at once; return the blocks with a part that differs."""
        size, count = integrity.part_bytes(), integrity.PARTS
        ranges, damaged = list[Range](), set[Block]()
        for (shard, block), parts in blocks.items():
            numbers = [block * count + part for part in parts if (shard, block * count + part) not in self._parts]
            end = self._verifiers[shard].size
            ranges += [(shard, first * size, min(stop * size, end)) for first, stop in _runs(numbers)]
        for (shard, start, _), content in zip(ranges, self._fetch(ranges), strict=True):
            block, first = divmod(start // size, count)
            hashes = self._cache.part_hashes(shard, block)[first:]
            for number, offset in enumerate(range(0, len(content), size)):
                part = memoryview(content)[offset : offset + size]
                # The hash is missing if the file of hashes was truncated.
                if hashes[number : number + 1] == [integrity.part_hash(part)]:
                    self._parts[shard, (start + offset) // size] = part
                elif (shard, block) not in damaged:
                    damaged.add((shard, block))
                    logger.warning(
                        "%s: block %d has changed or came damaged; reading it once more", self.names[shard], block
                    )
        return damaged

    def _copy_natively(self, pieces: Int64, arrays: Arrays) -> bool:
        return not self._parts and super()._copy_natively(pieces, arrays)

    def _read(self, shard: int, buffer: memoryview, offset: int) -> None:
        size, position = integrity.part_bytes(), 0
        while position < len(buffer):
            number, inside = divmod(offset + position, size)
            part = buffer[position : position + size - inside]
            content = self._parts.get((shard, number))
            if content is None:
                super()._read(shard, part, offset + position)
            else:
                part[:] = content[inside : inside + len(part)]
            position += len(part)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Join ascending numbers that follow each other: the first of each run, and the one past its last."""
    runs = list[tuple[int, int]]()
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs
