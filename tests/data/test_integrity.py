"""Damaged and altered shards: whatever is changed in the files is noticed when it is first read, and named."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dkan_core import DataError
from dkan_core.data.format import integrity, shard_writer
from dkan_core.data.format.integrity import BlockVerifier
from dkan_core.data.format.layout import Content
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.shard_writer import Shard, ShardWriter, record_type
from dkan_core.data.hashing import splitmix64
from dkan_core.data.loading.loader import all_batches
from dkan_core.utils.arrays import Arrays
from tests.data.shards import add_rows

ROWS, BLOCK = 500, 1024
LAYOUT = {
    "numeric": ((3,), "float16"),
    "categorical": ((2,), "int32"),
    "labels": ((2,), "uint8"),
    "weight": ((), "float32"),
}
CONTENT = Content(layout=LAYOUT, labels=("late", "lost"), cardinalities=(("city", 5), ("age", 9)))


def make_arrays() -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "numeric": np.where(rng.random((ROWS, 3)) < 0.1, np.nan, rng.uniform(-3, 3, (ROWS, 3))).astype(np.float16),
        "categorical": rng.integers(0, [5, 9], (ROWS, 2)).astype(np.int32),
        "labels": rng.choice([0, 1, 255], (ROWS, 2)).astype(np.uint8),
        "weight": rng.uniform(0, 2, ROWS).astype(np.float32),
    }


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Two shards of several blocks each."""
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 8000)
    writer = ShardWriter(tmp_path / "train", ROWS, record_type(LAYOUT))
    add_rows(writer, splitmix64(np.arange(ROWS, dtype=np.uint64)), make_arrays())
    found = writer.finish()
    assert len(found) == 2 and all(len(shard.blocks) > 4 for shard in found)
    return found


def read_all(root: Path, found: list[Shard], content: Content = CONTENT) -> Arrays:
    with ShardReader(root, found, content) as reader:
        batches = list(all_batches(reader, 64))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_every_flipped_bit_is_noticed(tmp_path: Path, written: list[Shard]) -> None:
    path = tmp_path / written[1].path
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for index in [0, 7, 8, 50, *rng.integers(100, len(content), 40).tolist(), len(content) - 1]:
        damaged = bytearray(content)
        damaged[index] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=str(path)) as error:
            read_all(tmp_path, written)
        if index >= 500:  # behind the header, whose damage may be found before its hash is looked at
            assert f"block {index // BLOCK} " in str(error.value)
    path.write_bytes(content)
    np.testing.assert_array_equal(np.sort(read_all(tmp_path, written)["weight"]), np.sort(make_arrays()["weight"]))


CHANGES: dict[str, Callable[[Arrays], object]] = {
    "zeroed": lambda arrays: arrays["numeric"].fill(0),
    "labels inverted": lambda arrays: np.bitwise_xor(arrays["labels"], 1, out=arrays["labels"]),
    "rows swapped": lambda arrays: arrays["labels"].sort(axis=0),
    "another weight": lambda arrays: arrays["weight"].fill(1),
}


def rewrite(root: Path, shard: Shard, change: Callable[[Arrays], object]) -> bytes:
    """Write a shard again with other values in it."""
    with ShardReader(root, [shard], CONTENT) as reader:
        arrays = reader.gather([(0, shard.rows)])
    change(arrays)
    content = save(arrays)
    (root / shard.path).write_bytes(content)
    return content


@pytest.mark.parametrize("case", CHANGES)
def test_other_values_of_the_same_size_are_noticed(tmp_path: Path, written: list[Shard], case: str) -> None:
    rewrite(tmp_path, written[0], CHANGES[case])
    with pytest.raises(DataError, match=r"train/00000-of-00002\.safetensors: block \d+ .* is damaged or was altered"):
        read_all(tmp_path, written)


def put(name: str, index: Any, value: float) -> Callable[[Arrays], object]:
    return lambda arrays: arrays[name].__setitem__(index, value)


# Data with hashes that fit, but which the encoding cannot give: somebody's own writer, or hashes made again.
WRONG: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "label 7": (put("labels", (130, 1), 7), r"label 'lost' in row 130 is 7; expected 0, 1 or 255"),
    "code too high": (put("categorical", (99, 0), 5), r"column 'city' has code 5 in row 99; expected 0 to 4"),
    "code of another column": (put("categorical", (99, 1), 9), r"column 'age' has code 9 in row 99; expected 0 to 8"),
    "code far too high": (put("categorical", (0, 1), 10**6), r"column 'age' has code 1000000 in row 0"),
    "negative code": (put("categorical", (200, 1), -5), r"column 'age' has code -5 in row 200"),
    "negative weight": (put("weight", 3, -1), r"weight in row 3 is -1\.0; expected 0 to 1e\+30"),
    "weight NaN": (put("weight", 3, np.nan), r"weight in row 3 is nan"),
    "score too high": (put("numeric", (120, 2), 3.5), r"array 'numeric' holds 3\.5 in row 120; expected -3 to 3, or"),
    "infinite score": (put("numeric", (0, 0), -np.inf), r"array 'numeric' holds -inf in row 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_that_the_encoding_cannot_give_are_named(tmp_path: Path, written: list[Shard], case: str) -> None:
    change, message = WRONG[case]
    content = rewrite(tmp_path, written[0], change)
    (tmp_path / "hashed").write_bytes(content)
    with (tmp_path / "hashed").open("rb") as file:
        blocks = tuple(integrity.block_hashes(file))
    whole = hashlib.sha256(content).hexdigest()
    listed = [written[0].model_copy(update={"sha256": whole, "blocks": blocks}), *written[1:]]
    with pytest.raises(DataError, match=message):
        read_all(tmp_path, listed)


ARRAYS: dict[str, Content] = {
    "other dtype": Content(layout={**LAYOUT, "numeric": ((3,), "uint8")}),
    "other width": Content(layout={**LAYOUT, "labels": ((1,), "uint8")}),
    "array missing": Content(layout={name: kind for name, kind in LAYOUT.items() if name != "weight"}),
    "array too many": Content(layout={**LAYOUT, "extra": ((), "uint8")}),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_other_arrays_than_the_manifest_says_are_named(tmp_path: Path, written: list[Shard], case: str) -> None:
    with pytest.raises(DataError, match=r"train/00000-of-00002\.safetensors: .*the manifest says"):
        read_all(tmp_path, written, ARRAYS[case])


def test_array_that_begins_between_two_items_is_refused(tmp_path: Path, written: list[Shard]) -> None:
    """An item across the bound of two blocks would be in neither, and its value unchecked."""
    path = tmp_path / written[0].path
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :])
    listed = [written[0].model_copy(update={"bytes": written[0].bytes + 1}), *written[1:]]
    with pytest.raises(DataError, match=r"array '\w+' begins at byte [\d,]+; expected a multiple of 4"):
        read_all(tmp_path, listed)


def test_swapped_arrays_are_noticed(tmp_path: Path) -> None:
    """Both have the same type and shape: only the header says which one is which."""
    layout = {"numeric": ((2,), "uint8"), "labels": ((2,), "uint8")}
    writer = ShardWriter(tmp_path / "train", ROWS, record_type(layout))
    labels = make_arrays()["labels"]
    add_rows(writer, splitmix64(np.arange(ROWS, dtype=np.uint64)), {"numeric": labels[::-1], "labels": labels})
    found, path = writer.finish(), tmp_path / "train/00000-of-00001.safetensors"
    content = path.read_bytes()
    swapped = content.replace(b'"labels"', b'"tmp"').replace(b'"numeric"', b'"labels"').replace(b'"tmp"', b'"numeric"')
    assert len(swapped) == len(content)
    path.write_bytes(swapped)
    with pytest.raises(DataError, match=r"block 0 .* is damaged or was altered"):
        read_all(tmp_path, found, Content(layout=layout, labels=("late", "lost")))


def test_a_block_is_verified_once(tmp_path: Path, written: list[Shard], monkeypatch: pytest.MonkeyPatch) -> None:
    verify = BlockVerifier.verify
    reads: list[int] = []

    def counted(self: BlockVerifier, block: int, read: Callable[[int, int], bytes]) -> None:
        def noted(position: int, size: int) -> bytes:
            reads.append(position)
            return read(position, size)

        verify(self, block, noted)

    monkeypatch.setattr(BlockVerifier, "verify", counted)
    with ShardReader(tmp_path, written, CONTENT) as reader:
        assert not reads, "opening reads the header alone"
        reader.gather([(0, 1)])
        first = len(reads)
        for _ in range(3):
            list(all_batches(reader, 7))
    assert first <= 5, "a row lies in a block of each array, and the header in one"
    assert len(reads) == sum(len(shard.blocks) for shard in written)


def test_undamaged_blocks_are_still_read(tmp_path: Path, written: list[Shard]) -> None:
    path = tmp_path / written[0].path
    content = bytearray(path.read_bytes())
    content[5 * BLOCK // 2] ^= 1
    path.write_bytes(content)
    with ShardReader(tmp_path, written, CONTENT) as reader:
        reader.gather([(0, 1)])
        with pytest.raises(DataError, match="block 2 "):
            reader.gather([(0, written[0].rows)])


def test_file_in_another_place_than_the_folder_is_not_opened(tmp_path: Path, written: list[Shard]) -> None:
    path = tmp_path / written[0].path
    path.rename(tmp_path.parent / "elsewhere.safetensors")
    path.symlink_to(tmp_path.parent / "elsewhere.safetensors")
    with pytest.raises(DataError, match=r"names a file outside of it: 'train/00000-of-00002\.safetensors'"):
        read_all(tmp_path, written)


def test_pipe_in_the_place_of_a_shard_does_not_hang(tmp_path: Path, written: list[Shard]) -> None:
    path = tmp_path / written[0].path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"00000-of-00002\.safetensors: is not a regular file"):
        read_all(tmp_path, written)


def test_folder_that_is_itself_a_link_is_read(tmp_path: Path, written: list[Shard]) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert len(read_all(tmp_path / "link", written)["weight"]) == ROWS
