"""Which split a row goes to, and that nothing of valid and test is looked at to encode it."""

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dkan_core import ConfigError, PrepareConfig, prepare
from dkan_core.config.prepare import SPLITS
from dkan_core.data.hashing import content_keys, value_keys
from tests.data.tables import CONFIG, ROWS, make_rows, row_numbers, write

TIMES = pa.array([0, None, 1_700_000_000_000_000, -1_000_000], pa.timestamp("us"))


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


@pytest.mark.parametrize("kind", ["integers", "negative", "strings", "dictionary", "dates", "uuids", "bytes"])
def test_group_stays_on_one_side(tmp_path: Path, kind: str) -> None:
    number = np.random.default_rng(0).integers(0, 200, ROWS)
    group = {
        "integers": pa.array(number),
        "negative": pa.array(-number),
        "strings": pa.array([f"patient {n}" for n in number]),
        "dictionary": pa.array([f"patient {n}" for n in number]).dictionary_encode(),
        "dates": pa.array(number.astype(np.int32)).cast(pa.date32()),
        "uuids": pa.array([uuid.UUID(int=int(n)).bytes for n in number], pa.uuid()),
        "bytes": pa.array([b"\xff%d" % n for n in number]),
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


def rows_by_split(folder: Path) -> dict[str, set[int]]:
    return {split: set(row_numbers(folder, split)) for split in SPLITS}


def test_content_keeps_each_row_in_its_split_when_files_come_before_it(tmp_path: Path) -> None:
    """Of row numbers that is not true, which is why the same rows can be train of one model and test of the next."""
    old, new = make_rows(), make_rows(300, seed=9)
    new = new.set_column(new.schema.get_field_index("row"), "row", pa.array(np.arange(300) + ROWS))
    write(old, tmp_path / "raw", files=2)
    found = {}
    for split_by in ("row", "content"):
        config = PrepareConfig(label=("y",), weight="row", split_by=split_by)
        prepare(tmp_path / "raw", tmp_path / f"{split_by}-before", config)
        found[split_by] = [rows_by_split(tmp_path / f"{split_by}-before")]
    write(new, tmp_path / "raw" / "0")
    for split_by in found:
        config = PrepareConfig(label=("y",), weight="row", split_by=split_by)  # type: ignore[arg-type]
        made = prepare(tmp_path / "raw", tmp_path / f"{split_by}-after", config)
        found[split_by].append(rows_by_split(tmp_path / f"{split_by}-after"))
        assert made.split_rule["by"] == split_by
    for split in SPLITS:
        before, after = (each[split] for each in found["content"])
        assert before <= after and len(after - before) > 0
    before, after = (each["test"] for each in found["row"])
    assert not before <= after


def test_content_is_neither_label_nor_weight_nor_the_order_of_columns(tmp_path: Path) -> None:
    table = make_rows()
    config = PrepareConfig(label=("y",), weight="row", split_by="content")
    prepare(write(table, tmp_path / "raw"), tmp_path / "out", config)
    flipped = table.set_column(table.schema.get_field_index("y"), "y", pa.array(1 - table["y"].to_numpy()))
    flipped = flipped.select(flipped.column_names[::-1])
    prepare(write(flipped, tmp_path / "raw-2", files=3), tmp_path / "out-2", config)
    assert rows_by_split(tmp_path / "out") == rows_by_split(tmp_path / "out-2")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"a": pa.array([1.0, 2.0, -0.0, None])}, True),
        ({"a": pa.array([1, 2, 0, None], pa.int8())}, True),
        ({"a": pa.array([1.0, 2.0, 0.0, np.nan])}, True),
        ({"b": pa.array(["x", "y", None, "x"]).dictionary_encode()}, True),
        ({"c": pa.nulls(4, pa.float32())}, True),
        ({"t": TIMES.cast(pa.timestamp("s"))}, True),
        ({"t": TIMES.cast(pa.timestamp("ms", "Asia/Tokyo"))}, True),
        ({"t": TIMES.cast(pa.timestamp("ns"))}, True),
        ({"t": pc.add(TIMES.cast(pa.timestamp("ns")), pa.array([0, 0, 1, 0], pa.duration("ns")))}, False),
        ({"a": pa.array([1, 2, 5, None])}, False),
        ({"b": pa.array(["x", "y", "", "x"])}, False),
        ({"c": pa.array([None, None, False, None])}, False),
    ],
)
def test_key_of_a_row_is_that_of_its_values(change: dict[str, pa.Array], *, same: bool) -> None:
    columns = {"a": pa.array([1, 2, 0, None]), "b": pa.array(["x", "y", None, "x"])}
    columns |= {"t": TIMES} if "t" in change else {}
    before, after = content_keys(pa.record_batch(columns)), content_keys(pa.record_batch({**columns, **change}))
    assert (before == after).tolist() == [True, True, same, True]


@pytest.mark.parametrize("other", [{"group": "g"}, {"split_column": "part"}])
def test_content_and_a_column_that_decides_exclude_each_other(other: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"split_by content: column .* already determines the splits"):
        PrepareConfig(label=("y",), split_by="content", **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1, -7, 2**53]), pa.array([1.0, -7.0, 2.0**53])),
        (pa.array([1, -7]), pa.array([1, -7], pa.int8()).cast(pa.decimal128(5, 2))),
        (pa.array([0.1, float("inf"), 2.0**70]), pa.array([0.1, float("inf"), 2.0**70])),
        (pa.array([Decimal("1.50"), Decimal("-7"), Decimal("0.1")]), pa.array([1.5, -7.0, 0.1])),
        (pa.array([Decimal("1.5")], pa.decimal128(10, 2)), pa.array([Decimal("1.5")], pa.decimal128(10, 3))),
        (pa.array([Decimal(2**53 + 1), Decimal(2**53)]), pa.array([2**53 + 1, 2**53])),
        (pa.array([Decimal(2**70), Decimal(2**70 + 2**30)]), pa.array([2.0**70, 2.0**70 + 2.0**30])),
        (pa.array([2**63 + 2048, 5], pa.uint64()), pa.array([2.0**63 + 2048, 5.0])),
        (pa.array([0.1, 3.0], pa.float32()), pa.array([0.1, 3.0], pa.float32()).cast(pa.float64())),
        (pa.array([0.5, 3.0], pa.float32()).cast(pa.float16()), pa.array([0.5, 3.0])),
        (pa.array([86_400_005], pa.int64()).cast(pa.date64()), pa.array([86_400_005], pa.timestamp("ms"))),
        (pa.array([1, 2], pa.date32()), pa.array([86_400, 172_800], pa.timestamp("s"))),
        (pa.array([5, -5], pa.duration("s")), pa.array([5_000, -5_000], pa.duration("ms"))),
        (pa.array([7], pa.time32("s")), pa.array([7_000_000_000], pa.time64("ns"))),
    ],
)
def test_equal_values_of_other_types_have_equal_keys(first: pa.Array, second: pa.Array) -> None:
    np.testing.assert_array_equal(value_keys(first), value_keys(second))
    assert len({*value_keys(first).tolist()}) == len(first)
