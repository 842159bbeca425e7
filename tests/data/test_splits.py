"""Which split a row goes to, and that nothing of valid and test is looked at to encode it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from dkan_core import PrepareConfig, prepare
from dkan_core.config.prepare import SPLITS
from tests.data.tables import CONFIG, ROWS, make_rows, row_numbers, write


def split_of(key: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rule that the development data sets are published with."""
    z = np.asarray(key).astype(np.uint64)
    with np.errstate(over="ignore"):
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    b = z % np.uint64(10)
    return np.where(b < 7, 0, np.where(b == 7, 1, 2))


def test_another_seed_gives_another_split_and_shuffle(tmp_path: Path) -> None:
    paths = write(make_rows(), tmp_path / "raw")
    for seed in (0, 1):
        prepare(paths, tmp_path / f"out-{seed}", PrepareConfig(label=("y",), weight="row", seed=seed))
    first, second = (row_numbers(tmp_path / f"out-{seed}", "train") for seed in (0, 1))
    assert sorted(first) != sorted(second)
    common = set(first) & set(second)
    assert [row for row in first if row in common] != [row for row in second if row in common]


def test_hash_split_is_the_published_rule_at_seed_zero(tmp_path: Path) -> None:
    prepare(write(make_rows(), tmp_path / "raw", files=3), tmp_path / "out", CONFIG)
    wanted = split_of(np.arange(ROWS))
    for index, split in enumerate(SPLITS):
        assert sorted(row_numbers(tmp_path / "out", split)) == np.flatnonzero(wanted == index).tolist()


@pytest.mark.parametrize("kind", ["integers", "negative", "strings", "dictionary", "dates"])
def test_group_stays_on_one_side(tmp_path: Path, kind: str) -> None:
    number = np.random.default_rng(0).integers(0, 200, ROWS)
    group = {
        "integers": pa.array(number),
        "negative": pa.array(-number),
        "strings": pa.array([f"patient {n}" for n in number]),
        "dictionary": pa.array([f"patient {n}" for n in number]).dictionary_encode(),
        "dates": pa.array(number.astype(np.int32)).cast(pa.date32()),
    }[kind]
    paths = write(make_rows().append_column("g", group), tmp_path / "raw", files=3)
    made = prepare(paths, tmp_path / "out", PrepareConfig(label=("y",), weight="row", group="g"))
    sides = [{int(number[row]) for row in row_numbers(tmp_path / "out", split)} for split in SPLITS]
    assert sum(map(len, sides)) == len(set(number.tolist()))
    assert "g" not in made.preprocessor.columns
    if kind == "integers":
        for index, side in enumerate(sides):
            assert (split_of(np.array(sorted(side))) == index).all()


@pytest.mark.parametrize("percent", ["80/10/10", "98/1/1", "50/50/0"])
def test_split_has_the_shares_asked_for(tmp_path: Path, percent: str) -> None:
    paths = write(make_rows(20_000), tmp_path / "raw")
    made = prepare(paths, tmp_path / "out", PrepareConfig(label=("y",), split=percent))
    for name, share in zip(SPLITS, percent.split("/"), strict=True):
        rows = made.splits[name].rows if name in made.splits else 0
        assert abs(rows / 20_000 - int(share) / 100) < 0.01


def test_split_column_is_honoured(tmp_path: Path) -> None:
    part = np.random.default_rng(1).choice(SPLITS, ROWS)
    paths = write(make_rows().append_column("part", pa.array(part.tolist())), tmp_path / "raw", files=2)
    made = prepare(paths, tmp_path / "out", PrepareConfig(label=("y",), weight="row", split_column="part"))
    for split in SPLITS:
        assert sorted(row_numbers(tmp_path / "out", split)) == np.flatnonzero(part == split).tolist()
    assert "part" not in made.preprocessor.columns


def test_statistics_come_from_train_only(tmp_path: Path) -> None:
    table = make_rows()
    test_rows = split_of(np.arange(ROWS)) != 0
    x = np.where(test_rows, 1e9, table["x"].to_numpy())
    city = np.where(test_rows, "Atlantis", table["city"].to_numpy(zero_copy_only=False))
    other = table.set_column(0, "x", pa.array(x.astype(np.float32))).set_column(2, "city", pa.array(city.tolist()))
    first = prepare(write(table, tmp_path / "raw-0"), tmp_path / "out-0", CONFIG)
    second = prepare(write(other, tmp_path / "raw-1"), tmp_path / "out-1", CONFIG)
    assert first.preprocessor == second.preprocessor
    assert (tmp_path / "out-0/train/00000-of-00001.safetensors").read_bytes() == (
        tmp_path / "out-1/train/00000-of-00001.safetensors"
    ).read_bytes()
