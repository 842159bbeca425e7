"""Batches: every row once an epoch, the same global batches at any number of workers, errors that name the shard."""

import itertools
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkan_core import DataError
from dkan_core.data.format import shard_writer
from dkan_core.data.format.layout import Content
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Shard, ShardWriter, record_type
from dkan_core.data.hashing import splitmix64
from dkan_core.data.loading import order, prefetching
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import SampledRows, all_batches, read_sample, train_batches
from dkan_core.data.loading.order import slice_of, steps_per_epoch
from dkan_core.data.loading.prefetching import prefetched
from dkan_core.utils.arrays import Arrays
from tests.data.shards import add_rows

LAYOUT = {"numeric": ((3,), "uint8"), "categorical": ((2,), "int32"), "weight": ((), "float32")}
Readers = dict[tuple[int, int], ShardReader]
"""Opened splits by rows and shards."""

CONTENT = Content(layout=LAYOUT, cardinalities=(("a", 10_000), ("b", 10_001)))


def write(folder: Path, rows: int, count: int) -> list[Shard]:
    """Write rows whose every cell follows from their number, in some ``count`` shards."""
    number = np.arange(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", max(1, rows * 23 // count))
        writer = ShardWriter(folder, rows, record_type(LAYOUT))
    arrays: dict[str, np.ndarray] = {
        "numeric": (number[:, None] + [0, 1, 2]).astype(np.uint8),
        "categorical": np.stack([number, number + 1], axis=1).astype(np.int32),
        "weight": number.astype(np.float32),
    }
    add_rows(writer, splitmix64(number.astype(np.uint64)), arrays)
    return writer.finish()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    root = tmp_path_factory.mktemp("shards")
    shapes = [(1, 1), (63, 1), (64, 2), (1000, 1), (1000, 7), (777, 40)]
    return {
        (rows, count): ShardReader(
            root / f"{rows}-{count}", write(root / f"{rows}-{count}/train", rows, count), CONTENT
        )
        for rows, count in shapes
    }


def visited(batches: Iterator[Arrays]) -> list[int]:
    numbers: list[int] = []
    for arrays in batches:
        number = arrays["weight"].astype(np.int64)
        np.testing.assert_array_equal(arrays["numeric"], (number[:, None] + [0, 1, 2]).astype(np.uint8))
        np.testing.assert_array_equal(arrays["categorical"], np.stack([number, number + 1], axis=1))
        numbers += number.tolist()
    return numbers


@settings(max_examples=60)
@given(st.data())
def test_every_row_is_visited_once_an_epoch_whatever_the_shape(readers: Readers, data: st.DataObject) -> None:
    (rows, _), reader = data.draw(st.sampled_from(sorted(readers.items(), key=lambda item: item[0])))
    batch_size, workers, seed, epoch = (data.draw(st.integers(1, high)) for high in (1500, 9, 99, 99))
    weight = st.floats(1e-3, 1e3)
    weights = data.draw(st.just([]) | st.lists(weight, min_size=workers, max_size=workers))
    settings: dict[str, Any] = {
        "seed": seed,
        "epoch": epoch,
        "batch_size": batch_size,
        "workers": workers,
        "weights": weights,
    }
    numbers = [visited(train_batches(reader, rank=rank, **settings)) for rank in range(workers)]
    assert sorted(itertools.chain(*numbers)) == list(range(rows))
    assert sorted(visited(all_batches(reader, batch_size))) == list(range(rows))


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(1, 8), st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=8), st.booleans())
def test_global_batch_of_a_step_is_the_same_however_it_is_cut(
    readers: Readers, size: int, workers: int, weights: list[float], weighted: bool
) -> None:
    reader = readers[777, 40]
    settings: dict[str, Any] = {"seed": 1, "epoch": 2, "batch_size": size}
    cut = {**settings, "workers": workers, "weights": weights[:workers] if weighted else []}
    alone = list(train_batches(reader, **settings))
    parts = [list(train_batches(reader, rank=rank, **cut)) for rank in range(workers)]
    for step, whole in zip(zip(*parts, strict=True), alone, strict=True):
        assert list(itertools.chain(*(visited(iter([part])) for part in step))) == visited(iter([whole]))
        keys = np.concatenate([part["dropout_key"] for part in step])
        np.testing.assert_array_equal(keys, whole["dropout_key"])
    assert len(alone) == steps_per_epoch(777, size)


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 64))
def test_shares_of_a_step_are_even(rows: int, size: int, workers: int) -> None:
    for step in (0, steps_per_epoch(rows, size) - 1):
        shares = [slice_of(rows, step, batch_size=size, rank=rank, workers=workers) for rank in range(workers)]
        lengths = [stop - start for start, stop in shares]
        assert max(lengths) - min(lengths) <= 1
        assert sum(lengths) == min(size, rows - step * size)


@given(st.integers(1, 10**5), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=64))
def test_shares_of_a_step_follow_the_weights(size: int, weights: list[float]) -> None:
    count, whole = len(weights), sum(weights)
    for rank, weight in enumerate(weights):
        start, stop = slice_of(size, 0, batch_size=size, rank=rank, workers=count, weights=weights)
        assert abs(stop - start - size * weight / whole) < 1 + 1e-6


def test_order_is_a_pure_function_of_seed_and_epoch(readers: Readers) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return visited(train_batches(readers[1000, 7], seed=seed, epoch=epoch, batch_size=100))

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_order_does_not_hang_on_the_batch_size(readers: Readers) -> None:
    orders = [visited(train_batches(readers[1000, 7], seed=0, epoch=0, batch_size=size)) for size in (1, 33, 1000)]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("harm", ["vanish", "truncate", "other size of header", "other rows", "no shard"])
def test_damaged_shard_is_named_when_opened(tmp_path: Path, harm: str) -> None:
    found = write(tmp_path / "train", 500, 3)
    victim = tmp_path / found[1].path
    content = victim.read_bytes()
    if harm == "vanish":
        victim.unlink()
    elif harm == "truncate":
        victim.write_bytes(content[:-10])
    elif harm == "other size of header":
        victim.write_bytes(b"\xff" * 8 + content[8:])
    elif harm == "other rows":
        rows = str(found[1].rows).encode()
        victim.write_bytes(content.replace(b"[" + rows, b"[" + str(found[1].rows + 1).encode()))
    else:
        victim.write_bytes(bytes(len(content)))
    with pytest.raises(DataError, match=str(victim)):
        ShardReader(tmp_path, found, CONTENT)


def test_no_handle_stays_open_after_a_failed_open(tmp_path: Path) -> None:
    found = write(tmp_path / "train", 500, 3)
    (tmp_path / found[-1].path).unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError):
        ShardReader(tmp_path, found, CONTENT)
    assert len(os.listdir("/proc/self/fd")) == before


def test_shards_of_several_readers_may_be_open_at_once(tmp_path: Path) -> None:
    """At the end of a run, the evaluator reads the train split beside the valid one."""
    found, limits = write(tmp_path / "train", 10, 1) * 400, resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, limits[1]))
        for _ in range(2):
            assert stack.enter_context(ShardReader(tmp_path, found, CONTENT)).rows == 4000


def test_shard_cut_while_it_is_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    found = write(tmp_path / "train", 500, 3)
    reader = ShardReader(tmp_path, found, CONTENT)
    os.truncate(tmp_path / found[1].path, 300)
    with pytest.raises(DataError, match=str(tmp_path / found[1].path)):
        visited(train_batches(reader, seed=0, epoch=0, batch_size=100))
    reader.close()


def test_prefetching_changes_nothing(readers: Readers) -> None:
    reader = readers[1000, 7]
    plain = visited(train_batches(reader, seed=3, epoch=1, batch_size=70))
    assert visited(prefetched(train_batches(reader, seed=3, epoch=1, batch_size=70))) == plain


def test_prefetched_raises_the_error_after_the_batches_before_it() -> None:
    def batches() -> Iterator[Arrays]:
        yield {"weight": np.zeros(1)}
        raise DataError("shard 7 breaks off")

    found = prefetched(batches())
    next(found)
    with pytest.raises(DataError, match="shard 7 breaks off"):
        next(found)
    assert not loader_threads()


def test_thread_ends_when_the_consumer_stops_early(readers: Readers) -> None:
    read = []

    def batches() -> Iterator[Arrays]:
        for batch in train_batches(readers[1000, 7], seed=0, epoch=0, batch_size=10):
            read.append(batch)
            yield batch

    found = prefetched(batches())
    next(found)
    assert loader_threads()
    found.close()
    assert not loader_threads()
    assert len(read) <= 2 + prefetching.PREFETCH, "in addition to the one taken, those that wait and one on its way"


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dkan-loader"]


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_pieces_are_long_enough_to_read_fast_and_small_data_has_many(rows: int, row_bytes: int) -> None:
    piece = order.piece_rows(rows, row_bytes)
    assert piece >= order.MIN_PIECE_ROWS
    assert piece == order.MIN_PIECE_ROWS or piece * order.MIN_PIECES <= rows


@pytest.mark.parametrize("rows", [1, 142, 143, 500, 1000, 5000])
def test_sampled_rows_are_a_split_of_their_own_with_rows_of_all_shards(readers: Readers, rows: int) -> None:
    reader = readers[1000, 7]
    sample = SampledRows(reader, rows)
    stored, numbers = visited(all_batches(reader, 100)), visited(all_batches(sample, 100))
    assert sample.rows == min(rows, reader.rows) == len(numbers)
    for start, stop in itertools.pairwise(reader.starts.tolist()):
        of_shard = [number for number in numbers if number in stored[start:stop]]
        assert of_shard == stored[start : start + len(of_shard)]
        assert abs(len(of_shard) - (stop - start) * sample.rows / reader.rows) < 1
    assert sorted(visited(train_batches(sample, seed=1, epoch=0, batch_size=64))) == sorted(numbers)


@pytest.mark.parametrize(("shape", "rows"), [((1000, 1), 300), ((1000, 7), 300), ((777, 40), 5000)])
def test_first_rows_of_a_sample_are_a_sample_too(readers: Readers, shape: tuple[int, int], rows: int) -> None:
    reader = readers[shape]
    stored, numbers = visited(all_batches(reader, 100)), visited(iter([read_sample(reader, rows)]))
    assert sorted(numbers) == sorted(visited(all_batches(SampledRows(reader, rows), 100)))
    shards = np.searchsorted(reader.starts, [stored.index(number) for number in numbers], side="right") - 1
    half, counts = shards[: len(shards) // 2], np.bincount(shards, minlength=shape[1])
    np.testing.assert_allclose(np.bincount(half, minlength=shape[1]), counts / 2, atol=1)
    assert shape[1] > 1 or numbers == stored[:rows]


@pytest.mark.parametrize("shards", [2, 5])
def test_alternate_rows_of_a_sample_are_of_every_shard(shards: int) -> None:
    """The search for crosses fits on every second row, and trials hold out every fifth; shards may be equally large."""
    rows = 400 * shards
    reader = ArraysReader({"labels": np.arange(rows)[:, None]})
    reader.starts = np.arange(0, rows + 1, 400)
    shard_N = read_sample(reader, rows // 2)["labels"][:, 0] // 400
    for step in range(shards):
        counts = np.bincount(shard_N[step::shards], minlength=shards)
        assert counts.min() > 0.5 * counts.mean(), (step, counts)
