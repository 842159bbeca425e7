"""Shards in a bucket: blocks come when they are needed, are kept up to a limit, and are verified."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dkan_core import DataError, PrepareConfig, TrainConfig, prepare, train
from dkan_core.config.train import TrainConfig as Settings
from dkan_core.data.format import integrity, remote_reader, shard_writer
from dkan_core.data.format.block_cache import Mark, read_source
from dkan_core.data.format.layout import Content
from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.format.remote_reader import FETCHED_BLOCKS, RemoteShardReader, open_remote
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Shard, ShardWriter, record_type
from dkan_core.data.hashing import splitmix64
from dkan_core.data.loading.loader import all_batches, open_split, train_batches
from dkan_core.data.loading.tiers import open_data
from dkan_core.errors import ConfigError
from dkan_core.utils.arrays import Arrays
from tests.data.shards import add_rows
from tests.data.sparse_tables import list_table, make_ones
from tests.data.tables import write

ROWS, BLOCK = 4000, 2048
LAYOUT = {"numeric": ((9,), "float32"), "labels": ((1,), "uint8")}
CONTENT = Content(layout=LAYOUT, labels=("y",))
URI = "memory://bucket/data"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(integrity, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(remote_reader, "HEADER_BYTES", 512)
    return tmp_path / "local"


@pytest.fixture
def shards(local: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shard]]:
    """Three shards of many blocks, on disk and in a file system of this process."""
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", ROWS * 45 // 3)
    writer = ShardWriter(local / "train", ROWS, record_type(LAYOUT))
    rng = np.random.default_rng(0)
    arrays: Arrays = {
        "numeric": rng.uniform(-3, 3, (ROWS, 9)).astype(np.float32),
        "labels": rng.integers(0, 2, (ROWS, 1)).astype(np.uint8),
    }
    add_rows(writer, splitmix64(np.arange(ROWS, dtype=np.uint64)), arrays)
    found = writer.finish()
    assert len(found) >= 3 and all(len(shard.blocks) > 10 for shard in found)
    memory = fsspec.filesystem("memory")
    for shard in found:
        memory.pipe_file(f"/bucket/data/{shard.path}", (local / shard.path).read_bytes())
    yield found
    memory.rm("/bucket", recursive=True)


def opened(shards: list[Shard], folder: Path, cache_bytes: int | None = None) -> RemoteShardReader:
    if not folder.exists():
        folder.mkdir()
        open_remote(URI, shards, folder, cache_bytes)
    source = read_source(folder)
    assert source is not None
    return RemoteShardReader(folder, source, shards, CONTENT)


class Fetched:
    """Counts what is fetched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[str, int]] = []
        self.sizes: list[int] = []
        self.round_trips = 0
        fetch = remote_reader.fetch_ranges

        def counted(names: Any, starts: Any, stops: Any) -> list[bytes]:
            self.ranges += zip(names, starts, strict=True)
            self.sizes += [stop - start for start, stop in zip(starts, stops, strict=True)]
            self.round_trips += bool(names)
            return fetch(names, starts, stops)

        monkeypatch.setattr(remote_reader, "fetch_ranges", counted)


def kept_bytes(folder: Path, shards: list[Shard]) -> int:
    index = (folder / "cached-blocks").read_bytes()
    sizes = [min(BLOCK, shard.bytes - start) for shard in shards for start in range(0, shard.bytes, BLOCK)]
    kept = int((np.frombuffer(index[8:], np.uint8) == Mark.BLOCK) @ np.array(sizes))
    assert int.from_bytes(index[:8], "little") == kept, "the sum is that of the blocks"
    return kept


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("share", [None, 0.0, 0.4])
def test_rows_of_a_bucket_are_those_on_disk_whatever_is_kept(
    local: Path,
    shards: list[Shard],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float | None,
    in_memory: bool,
) -> None:
    whole = sum(shard.bytes for shard in shards)
    blocks = sum(len(shard.blocks) for shard in shards)
    limit = None if share is None else int(share * whole)
    fetched = Fetched(monkeypatch)
    with ShardReader(local, shards, CONTENT) as plain, opened(shards, tmp_path / "cache", limit) as remote:
        assert len(fetched.ranges) == len(shards), "opening reads the headers alone"
        if in_memory:
            remote.keep_in_memory()
        for epoch in range(2):
            settings: dict[str, Any] = {"seed": 0, "epoch": epoch, "batch_size": 700}
            for ours, theirs in zip(train_batches(remote, **settings), train_batches(plain, **settings), strict=True):
                for name, array in theirs.items():
                    np.testing.assert_array_equal(ours[name], array)
    kept = kept_bytes(tmp_path / "cache", shards)
    assert kept == whole if limit is None else limit - BLOCK < kept <= limit
    if share is None or in_memory:
        assert len(fetched.ranges) == len(shards) + blocks, "each block comes once"
    else:
        assert len(fetched.ranges) > len(shards) + blocks


def single_rows(epoch: int, size: int = 100) -> Iterator[list[tuple[int, int]]]:
    """Every row by itself in a random order, as extents of batches."""
    order = np.random.default_rng(epoch).permutation(ROWS).tolist()
    for start in range(0, ROWS, size):
        yield [(row, row + 1) for row in order[start : start + size]]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_the_cache_has_no_room_for_comes_whole_once_and_then_in_parts(
    local: Path, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    whole, full_blocks = sum(shard.bytes for shard in shards), sum(shard.bytes // BLOCK for shard in shards)
    with ShardReader(local, shards, CONTENT) as plain:
        for epoch in range(2):
            # Another process, which goes on with what the first one has verified.
            with opened(shards, tmp_path / "cache", int(share * whole)) as remote:
                fetched = Fetched(monkeypatch)
                for extents in single_rows(epoch):
                    ours = remote.gather(extents)
                    for name, array in plain.gather(extents).items():
                        np.testing.assert_array_equal(ours[name], array)
            assert fetched.sizes.count(BLOCK) == (full_blocks if epoch == 0 else 0)
            # A row of 36 bytes lies in two or three parts of 32, and its label in one more.
            assert sum(fetched.sizes) < (whole if epoch == 0 else 0) + 3.5 * (1 - share) * whole


def test_a_batch_holds_little_more_than_its_rows(
    shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list[int]()
    with opened(shards, tmp_path / "cache", 0) as remote:
        copy = remote._copy

        def measured(*args: Any) -> None:
            held.append(sum(map(len, remote._parts.values())))
            copy(*args)

        monkeypatch.setattr(remote, "_copy", measured)
        for extents in single_rows(0):
            remote.gather(extents)
            assert not remote._parts, "nothing of a batch outlives it"
    assert len(held) == ROWS // 100 and max(held) < 3.5 * 100 * 37


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_asks_for_much_at_once_and_for_nothing_twice(
    shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    whole, blocks = sum(shard.bytes for shard in shards), sum(len(shard.blocks) for shard in shards)
    with opened(shards, tmp_path / "cache", 0) as remote:
        for extents in [] if is_first else [[(0, 700)], [(2000, 2001), (3500, ROWS)]]:
            remote.gather(extents)
        fetched = Fetched(monkeypatch)
        remote.gather(next(single_rows(0, ROWS)))
    assert sum(fetched.sizes) == whole if is_first else whole // 2 < sum(fetched.sizes) < whole
    assert fetched.round_trips <= -(-blocks // FETCHED_BLOCKS) + 1


def test_blocks_of_sparse_rows_come_together(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = prepare(
        write(list_table(make_ones()), tmp_path / "raw"), local, PrepareConfig(label=("y",), weight="row")
    )
    info = manifest.splits["train"]
    fsspec.filesystem("memory").put(f"{local}/", "/bucket/data/", recursive=True)
    folder = tmp_path / "cache"
    folder.mkdir()
    open_remote(URI, info.shards, folder, 0)
    with open_split(local, manifest, "train") as plain, open_split(folder, manifest, "train") as remote:
        order = np.random.default_rng(0).permutation(plain.rows).tolist()
        for epoch in range(2):
            fetched = Fetched(monkeypatch)
            extents = [(row, row + 1) for row in order]
            np.testing.assert_array_equal(remote.gather(extents)["sparse"], plain.gather(extents)["sparse"])
            # Those of the rows' other arrays, of the offsets, and of the codes that these lead to.
            assert fetched.round_trips <= (5 if epoch == 0 else 3)
            # A block in which an array ends and the next begins may come whole for one, and in parts for the other.
            assert sum(fetched.sizes) <= sum(shard.bytes + 3 * BLOCK for shard in info.shards)
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_processes_share_what_one_has_fetched(
    shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(shards, tmp_path / "cache") as first, opened(shards, tmp_path / "cache") as second:
        expected = [batch["numeric"] for batch in all_batches(first, 1000)]
        fetched = Fetched(monkeypatch)
        for batch, numeric in zip(all_batches(second, 1000), expected, strict=True):
            np.testing.assert_array_equal(batch["numeric"], numeric)
    assert not fetched.ranges


def harm(path: str, offset: int) -> None:
    memory = fsspec.filesystem("memory")
    content = bytearray(memory.cat_file(f"/bucket/data/{path}"))
    content[offset] ^= 1
    memory.pipe_file(f"/bucket/data/{path}", bytes(content))


def test_damage_in_the_bucket_is_named_after_a_second_look(
    shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harm(shards[1].path, 5 * BLOCK + 7)
    name = f"{URI}/{shards[1].path}"
    with opened(shards, tmp_path / "cache") as remote:
        fetched = Fetched(monkeypatch)
        with pytest.raises(DataError, match=f"{name}: block 5 .* is damaged"):
            list(all_batches(remote, 1000))
    assert fetched.ranges.count((name, 5 * BLOCK)) == 2 and "reading it once more" in caplog.text


def test_damage_on_the_way_or_in_the_cache_heals(
    local: Path, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetch, once = remote_reader.fetch_ranges, list[bool]()

    def damaged_once(names: Any, starts: Any, stops: Any) -> list[bytes]:
        found = fetch(names, starts, stops)
        if 3 * BLOCK in starts and not once:
            once.append(True)
            found[starts.index(3 * BLOCK)] = bytes(BLOCK)
        return found

    with opened(shards, tmp_path / "cache") as remote, ShardReader(local, shards, CONTENT) as plain:
        monkeypatch.setattr(remote_reader, "fetch_ranges", damaged_once)
        expected = list(all_batches(plain, 1000))
        for batch, theirs in zip(all_batches(remote, 1000), expected, strict=True):
            np.testing.assert_array_equal(batch["numeric"], theirs["numeric"])
        assert once and caplog.text.count("reading it once more") == 1
        with (tmp_path / "cache" / shards[2].path).open("r+b") as file:
            file.seek(4 * BLOCK)
            file.write(bytes(100))
        with opened(shards, tmp_path / "cache") as again:
            for batch, theirs in zip(all_batches(again, 1000), expected, strict=True):
                np.testing.assert_array_equal(batch["numeric"], theirs["numeric"])
    assert caplog.text.count("reading it once more") == 2


def test_every_damage_in_a_bucket_is_found_and_nothing_is_kept(shards: list[Shard], tmp_path: Path) -> None:
    harm(shards[0].path, 2 * BLOCK)
    harm(shards[2].path, shards[2].bytes - 1)
    with opened(shards, tmp_path / "cache", 0) as remote:
        found = list(remote.damaged_blocks())
    assert [each.split(" (")[0].removeprefix(f"{URI}/") for each in found] == [
        f"{shards[0].path}: block 2",
        f"{shards[2].path}: block {len(shards[2].blocks) - 1}",
    ]
    assert kept_bytes(tmp_path / "cache", shards) == 0


def test_what_changes_in_the_bucket_after_it_was_verified_is_named(
    shards: list[Shard], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(shards, tmp_path / "cache", 0) as remote:
        list(all_batches(remote, 1000))
        harm(shards[1].path, 5 * BLOCK + 7)
        name = f"{URI}/{shards[1].path}"
        with pytest.raises(DataError, match=f"{name}: block 5 .* is damaged"):
            list(all_batches(remote, 1000))
    assert f"{name}: block 5 has changed" in caplog.text


def test_part_that_comes_damaged_is_read_once_more(
    local: Path, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = remote_reader.fetch_ranges

    def damaged(names: Any, starts: Any, stops: Any) -> list[bytes]:
        return [
            bytes(len(each)) if stop - start < BLOCK else each
            for each, start, stop in zip(fetch(names, starts, stops), starts, stops, strict=True)
        ]

    with opened(shards, tmp_path / "cache", 0) as remote, ShardReader(local, shards, CONTENT) as plain:
        for extents in single_rows(0):
            remote.gather(extents)
        monkeypatch.setattr(remote_reader, "fetch_ranges", damaged)
        ours, theirs = remote.gather([(70, 75)]), plain.gather([(70, 75)])
        np.testing.assert_array_equal(ours["numeric"], theirs["numeric"])
        # So is a part whose hash is no longer there.
        monkeypatch.setattr(remote_reader, "fetch_ranges", fetch)
        os.truncate(tmp_path / "cache/part-hashes", 0)
        np.testing.assert_array_equal(remote.gather([(70, 75)])["numeric"], theirs["numeric"])


def test_full_disk_only_makes_reading_slow(local: Path, shards: list[Shard], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    opened(shards, folder, 0).close()
    (folder / "part-hashes").unlink()
    (folder / "part-hashes").symlink_to("/dev/full")
    with opened(shards, folder) as remote, ShardReader(local, shards, CONTENT) as plain:
        for extents in [[(0, 700)]] * 2:
            np.testing.assert_array_equal(remote.gather(extents)["numeric"], plain.gather(extents)["numeric"])


def test_bucket_that_cannot_be_reached_later_is_named(shards: list[Shard], tmp_path: Path) -> None:
    with opened(shards, tmp_path / "cache") as remote:
        fsspec.filesystem("memory").rm_file(f"/bucket/data/{shards[0].path}")
        with pytest.raises(DataError, match=f"{URI}/{shards[0].path}: cannot be read"):
            remote.gather([(0, 10)])


@pytest.mark.parametrize("kept", [None, 100])
def test_missing_or_shortened_shard_is_named_when_opened(shards: list[Shard], tmp_path: Path, kept: int | None) -> None:
    memory, path = fsspec.filesystem("memory"), f"/bucket/data/{shards[1].path}"
    content = memory.cat_file(path)
    memory.rm_file(path)
    if kept is not None:
        memory.pipe_file(path, content[:kept])
    words = "no such file" if kept is None else r"has 100 bytes; the manifest says [\d,]+ \(1 of"
    with pytest.raises(DataError, match=f"{URI}/{shards[1].path}: {words}"):
        opened(shards, tmp_path / "cache")


def test_shard_that_is_shortened_later_is_named(shards: list[Shard], tmp_path: Path) -> None:
    with opened(shards, tmp_path / "cache") as remote:
        memory, path = fsspec.filesystem("memory"), f"/bucket/data/{shards[1].path}"
        memory.pipe_file(path, memory.cat_file(path)[: 2 * BLOCK])
        with pytest.raises(DataError, match=f"{URI}/{shards[1].path}: is truncated at byte"):
            list(all_batches(remote, 1000))


def test_shard_that_is_removed_later_is_named_though_others_are_fetched_with_it(
    shards: list[Shard], tmp_path: Path
) -> None:
    with opened(shards, tmp_path / "cache") as remote:
        fsspec.filesystem("memory").rm_file(f"/bucket/data/{shards[1].path}")
        with pytest.raises(DataError, match=f"{URI}/{shards[1].path}: cannot be read"):
            remote.gather([(0, ROWS)])


def test_local_data_cannot_be_remote(prepared: Path) -> None:
    with (
        pytest.raises(ConfigError, match=f"data_in remote: {prepared} is on this machine"),
        open_data(prepared, Settings(data_in="remote")),
    ):
        pass


@pytest.mark.s3
def test_cache_without_room_for_all_rows_is_warned_of(
    s3: str, prepared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.filesystem("s3").put(f"{prepared}/", f"{s3}/data/", recursive=True)
    for cache_gb, warned in ((0.0, True), (1e-6, True), (1.0, False)):
        caplog.clear()
        with open_data(f"{s3}/data", Settings(data_cache_gb=cache_gb)):
            assert ("the cache does not hold all of it" in caplog.text) == warned, cache_gb


@pytest.mark.s3
def test_run_begins_before_its_data_have_come_and_is_that_of_local_data(
    s3: str, prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fsspec.filesystem("s3").put(f"{prepared}/", f"{s3}/data/", recursive=True)
    with open_prepared(f"{s3}/data", "train") as (folder, manifest):
        assert not any((folder / "cached-blocks").read_bytes()), "nothing has come yet"
        with open_split(folder, manifest, "train") as reader:
            reader.gather([(0, 1)])
        assert any((folder / "cached-blocks").read_bytes())
    settings: dict[str, Any] = {"device": "cpu", "epochs": 2, "hidden": (4,), "workers": 2, "batch_size": 256}
    with caplog.at_level(logging.INFO):
        remote = train(f"{s3}/data", tmp_path / "remote", TrainConfig(data_in="remote", data_cache_gb=1.0, **settings))
    plain = train(prepared, tmp_path / "plain", TrainConfig(**settings))
    assert "are read when they are needed; up to 1.00 GB are kept" in caplog.text
    assert [entry["loss"] for entry in remote.history] == [entry["loss"] for entry in plain.history]
    assert remote.average_precision == plain.average_precision
