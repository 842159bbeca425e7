"""Batches land in buffers that are used again: the right bytes, whatever copies them, and never while they are read."""

import hashlib
import io
import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from dkan_core import ConfigError, PrepareConfig, TrainConfig, prepare
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format import shard_writer
from dkan_core.data.format.integrity import block_hashes
from dkan_core.data.format.layout import Content
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Shard, ShardWriter, record_type
from dkan_core.data.hashing import splitmix64
from dkan_core.data.loading import order, tiers
from dkan_core.data.loading.loader import SliceBatches, batch_buffers, open_split, run_batches, train_batches
from dkan_core.data.loading.order import dropout_keys
from dkan_core.data.loading.prefetching import PREFETCH, BatchRing, RingClosedError
from dkan_core.errors import DataError
from dkan_core.training.compute.pinned_memory import copies_to, to_tensors
from dkan_core.training.setup.defaults import resolve
from dkan_core.utils.arrays import Arrays, Int64
from tests.data.shards import add_rows
from tests.data.tables import write
from tests.native import needs_native

ROWS, FEATURES = 3000, 300
LAYOUT = {"numeric": ((FEATURES,), "float32"), "labels": ((2,), "uint8"), "weight": ((), "float32")}
CONTENT = Content(layout=LAYOUT, labels=("a", "b"))
SETTINGS: dict[str, Any] = {"seed": 3, "batch_size": 1000, "epochs": 2}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardReader]:
    """Several shards; a row's cells follow from its number, which is its weight."""
    root, number = tmp_path_factory.mktemp("rows"), np.arange(ROWS)
    arrays: Arrays = {
        "numeric": np.sin(number[:, None] + np.arange(FEATURES)).astype(np.float32),
        "labels": np.stack([number % 2, number % 3 % 2], axis=1).astype(np.uint8),
        "weight": number.astype(np.float32),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", 1 << 20)
        writer = ShardWriter(root / "train", ROWS, record_type(LAYOUT))
    add_rows(writer, splitmix64(number.astype(np.uint64)), arrays)
    with ShardReader(root, writer.finish(), CONTENT) as opened:
        assert len(opened.paths) > 3
        yield opened


def resolved(**changes: Any) -> ResolvedTrainConfig:
    fixed: dict[str, Any] = {"members": 1, "hidden": (4,), "strategy": "single", "sync_interval": 1, "workers": 1}
    fixed |= {"grid_min": -2.0, "grid_max": 2.0, "num_centers": 8, "dropout": 0.0, "ema_decay": 0.0}
    return ResolvedTrainConfig(**{**fixed, "device": "cpu", "learning_rate": 0.1, **SETTINGS, **changes})


def reopened(reader: ShardReader, root: Path | None = None) -> ShardReader:
    """Open the same shards once more, or copies of them."""
    folder = root or reader.paths[0].parents[1]
    listed = []
    for path, (start, stop) in zip(reader.paths, itertools.pairwise(reader.starts.tolist()), strict=True):
        content = (folder / "train" / path.name).read_bytes()
        listed.append(
            Shard(
                path=f"train/{path.name}",
                rows=stop - start,
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                blocks=tuple(block_hashes(io.BytesIO(content))),
            )
        )
    return ShardReader(folder, listed, CONTENT)


def all_pieces(reader: ShardReader) -> Int64:
    return order.epoch_order(reader.starts, piece=64, seed=0, epoch=0).extents(0, reader.rows)


@needs_native
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("rows", [0, 1, 200, ROWS])
def test_native_gather_gives_the_bytes_of_the_plain_one(
    reader: ShardReader, monkeypatch: pytest.MonkeyPatch, rows: int, threads: int
) -> None:
    first = 0 if rows == ROWS else 7
    extents = order.epoch_order(reader.starts, piece=64, seed=0, epoch=0).extents(first, first + rows)
    monkeypatch.setattr(reader, "threads", threads)
    native = reader.gather(extents)
    monkeypatch.setattr(reader._copier, "_library", None)
    expected = reader.gather(extents)
    assert list(native) == list(expected)
    for name, array in native.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_native), False])
def test_rows_in_memory_are_those_on_disk(reader: ShardReader, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """Batches smaller and larger than those that are written past the caches."""
    with reopened(reader) as kept:
        kept.keep_in_memory()
        if not native:
            monkeypatch.setattr(kept._copier, "_library", None)
        for extents in (all_pieces(reader)[:5], all_pieces(reader)[3:9], all_pieces(reader)):
            expected = reader.gather(extents)
            for name, array in kept.gather(extents).items():
                np.testing.assert_array_equal(array, expected[name])


def copied(reader: ShardReader, folder: Path, kept_in_memory: bool) -> ShardReader:
    """Open copies of the same shards, whose rows are maybe to be kept in memory."""
    shutil.copytree(reader.paths[0].parents[1], folder)
    opened = reopened(reader, folder)
    if kept_in_memory:
        opened.keep_in_memory()
    return opened


@pytest.mark.parametrize("kept_in_memory", [False, True])
def test_files_are_read_again_only_from_disk(reader: ShardReader, tmp_path: Path, kept_in_memory: bool) -> None:
    with copied(reader, tmp_path / "copy", kept_in_memory) as opened:
        before = opened.gather(all_pieces(reader))
        for path in opened.paths:
            os.truncate(path, 0)
        if kept_in_memory:
            after = opened.gather(all_pieces(reader))
            assert all(np.array_equal(after[name], array) for name, array in before.items())
        else:
            with pytest.raises(DataError, match=rf"{opened.paths[0]}: is truncated at byte \d+, in block 0"):
                opened.gather([(0, 1)])


@pytest.mark.parametrize("kept_in_memory", [False, True])
def test_damage_is_found_wherever_the_rows_are_kept(reader: ShardReader, tmp_path: Path, kept_in_memory: bool) -> None:
    with copied(reader, tmp_path / "copy", kept_in_memory) as opened:
        with opened.paths[1].open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        for _ in range(2):
            with pytest.raises(DataError, match=f"{opened.paths[1]}: block 0 .* is damaged"):
                opened.gather(all_pieces(reader))


GB = 10**9
FOUR_WORKERS = {"strategy": "parameter-server", "workers": 4, "device": "cpu,cpu,cpu,cpu"}
TIERS: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "fits": ({}, GB, 8 * GB, "memory"),
    "fits one worker alone": (FOUR_WORKERS, GB, 8 * GB, "disk"),
    "too large": ({}, GB, 3 * GB, "disk"),
    "asked for": ({"data_in": "memory"}, GB, GB, "memory"),
    "not wanted": ({"data_in": "disk"}, 1, GB, "disk"),
}


@pytest.mark.parametrize("case", TIERS)
def test_rows_are_kept_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    changes, size, free, expected = TIERS[case]
    monkeypatch.setattr(tiers, "available_memory", lambda: free)
    with caplog.at_level("INFO"):
        settled = tiers.settle_tier(resolved(**changes), size)
    assert settled.data_in == expected
    assert f"rows {'in the memory of each worker' if expected == 'memory' else 'on disk'}: " in caplog.text


def test_rows_on_a_gpu_are_decided_there(caplog: pytest.LogCaptureFixture) -> None:
    config = resolved(device="cuda:0")
    with caplog.at_level("INFO"):
        assert tiers.settle_tier(config, 1) is config
    assert "rows on the GPU, where they fit, otherwise in the memory of each worker: " in caplog.text


def test_rows_on_a_device_that_takes_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="data_in device: with strategy single on cpu no GPU takes steps"):
        resolve(TrainConfig(device="cpu", data_in="device"), 1000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_buffers_reach_a_gpu_before_they_are_filled_again(reader: ShardReader) -> None:
    device, config = torch.device("cuda"), resolved(batch_size=100)
    with closing(SliceBatches(reader, config, 0, copies_to(device))) as slices:
        sent = [to_tensors(slices.get(step, 0), device) for step in range(60)]
    for batch, expected in zip(sent, run_batches(reader, config), strict=True):
        for name, tensor in batch.items():
            np.testing.assert_array_equal(tensor.cpu().numpy(), expected[name])


@needs_native
@pytest.mark.parametrize("first", [0, 5, 2**40 + 3])
def test_native_dropout_keys_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    native = [dropout_keys(seed, first, 777) for seed in (0, 1, 2**62)]
    monkeypatch.setattr(order, "native_library", lambda: None)
    for seed, keys in zip((0, 1, 2**62), native, strict=True):
        np.testing.assert_array_equal(keys, dropout_keys(seed, first, 777))


def test_batches_in_given_buffers_are_those_in_new_ones(reader: ShardReader) -> None:
    whole = batch_buffers(reader, 700)
    cut: list[Arrays] = []

    def take(rows: int) -> Arrays:
        cut.append({name: array[:rows] for name, array in whole.items()})
        return cut[-1]

    fixed: dict[str, Any] = {"seed": 1, "epoch": 1, "batch_size": 700}
    fresh = train_batches(reader, **fixed)
    for batch, expected in zip(train_batches(reader, buffers=take, **fixed), fresh, strict=True):
        assert batch is cut[-1] and set(batch) == {*LAYOUT, "dropout_key"}
        for name, array in batch.items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("workers", [1, 3])
def test_slices_are_read_into_the_same_few_buffers(reader: ShardReader, workers: int) -> None:
    config = resolved(strategy="parameter-server", workers=workers, device=",".join(["cpu"] * workers))
    for rank in range(workers):
        slices, addresses = SliceBatches(reader, config, rank), set()
        for step, expected in enumerate(run_batches(reader, config, rank)):
            batch = slices.get(step, rank)
            addresses.add(batch["numeric"].ctypes.data)
            for name, array in batch.items():
                np.testing.assert_array_equal(array, expected[name])
        slices.close()
        assert step == 5 and len(addresses) == 1 + PREFETCH


def test_batch_in_use_is_not_written_to(reader: ShardReader) -> None:
    """The thread has read all that it may: it waits for the buffer that is with the caller."""
    slices = SliceBatches(reader, resolved(batch_size=100), 0)
    held = slices.get(0, 0)
    before = {name: array.copy() for name, array in held.items()}
    ring = slices._ring
    assert ring is not None
    while ring._taken < 1 + PREFETCH:
        threading.Event().wait(0.01)
    for name, array in before.items():
        np.testing.assert_array_equal(held[name], array)
    assert ring._taken == 1 + PREFETCH
    slices.close()


def test_steps_out_of_order_and_of_other_ranks_give_their_rows(reader: ShardReader) -> None:
    config = resolved(strategy="parameter-server", workers=2, device="cpu,cpu", batch_size=500)
    slices = SliceBatches(reader, config, 0)
    for step, rank in [(0, 0), (1, 0), (1, 1), (2, 0), (7, 0), (8, 0), (2, 0), (3, 0)]:
        expected = next(run_batches(reader, config, rank, first=step))
        for name, array in slices.get(step, rank).items():
            np.testing.assert_array_equal(array, expected[name])
    slices.close()


def small_ring(count: int) -> BatchRing:
    return BatchRing([{"weight": np.zeros(3)} for _ in range(count)])


def test_buffer_is_taken_again_only_after_it_was_handed_back() -> None:
    ring, order_of_events = small_ring(2), []
    first, second = ring.take(3), ring.take(2)
    assert len(second["weight"]) == 2 and not np.shares_memory(first["weight"], second["weight"])

    def take_third() -> None:
        third = ring.take(1)
        order_of_events.append("taken")
        assert np.shares_memory(third["weight"], first["weight"])

    thread = threading.Thread(target=take_third)
    thread.start()
    thread.join(0.05)
    assert not order_of_events and thread.is_alive()
    ring.hand_back(lambda: order_of_events.append("waited"))
    thread.join()
    assert order_of_events == ["waited", "taken"]


def test_who_waits_for_a_buffer_is_told_that_none_comes() -> None:
    ring = small_ring(1)
    ring.take(1)
    threading.Timer(0.01, ring.close).start()
    with pytest.raises(RingClosedError):
        ring.take(1)


def test_error_of_the_thread_reaches_the_caller_and_later_steps(reader: ShardReader, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", 1 << 20)
        writer = ShardWriter(tmp_path / "train", ROWS, record_type(LAYOUT))
    add_rows(writer, splitmix64(np.arange(ROWS, dtype=np.uint64)), reader.gather(all_pieces(reader)))
    listed = writer.finish()
    damaged = tmp_path / listed[2].path
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x09")
    with ShardReader(tmp_path, listed, CONTENT) as opened:
        slices = SliceBatches(opened, resolved(batch_size=300), 0)
        with pytest.raises(DataError, match=f"{damaged}: block "):
            list(map(partial(slices.get, rank=0), range(10)))
        slices.close()


def test_positives_of_batches_vary_as_in_a_full_shuffle_of_sorted_rows(tmp_path: Path) -> None:
    """At most 1.2 times the variance of as many independent draws, though the source is sorted by label."""
    rows, size = 40_000, 250
    positive = np.arange(rows) >= rows * 0.7
    write(pa.table({"x": np.arange(rows, dtype=np.float32), "label": positive.astype(np.int8)}), tmp_path / "raw")
    data = tmp_path / "data"
    prepare(tmp_path / "raw", data, PrepareConfig(label=("label",)))
    with open_split(data, read_manifest(data), "train") as opened:
        share = opened.gather(order.stored_order(opened.starts).extents(0, opened.rows))["labels"].mean()
        found = [
            int(batch["labels"].sum())
            for epoch in range(4)
            for batch in train_batches(opened, seed=0, epoch=epoch, batch_size=size)
            if len(batch["labels"]) == size
        ]
    assert len(found) > 400
    assert np.var(found) <= 1.2 * size * share * (1 - share)
