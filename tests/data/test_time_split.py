"""Splits by time: the earliest rows are train, the latest test, equal times on one side, however the rows are read."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkan_core import ConfigError, DataError, PrepareConfig, prepare
from dkan_core.config.prepare import SPLITS
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.source import time_split
from dkan_core.data.source.time_split import KeyCounts, time_keys
from tests.data.tables import ROWS, make_rows, row_numbers, write

BY_TIME = PrepareConfig(label=("y",), weight="row", split_by_time="when")
DAYS = np.random.default_rng(5).permutation(np.arange(ROWS) % 100 - 40)
COLUMNS = {
    "dates": pa.array(DAYS.astype(np.int32)).cast(pa.date32()),
    "integers": pa.array(DAYS),
    "floats": pa.array(DAYS / 7),
    "decimals": pa.array(DAYS).cast(pa.decimal128(21, 2)),
    "timestamps": pa.array(DAYS * 86_400_000_000).cast(pa.timestamp("us")),
    "zoned": pa.array(DAYS * 86_400).cast(pa.timestamp("s", "Europe/Oslo")),
}
BOUNDS = {
    "dates": ("1970-01-31", "1970-02-10"),
    "integers": ("30", "40"),
    "floats": ("4.285714285714286", "5.714285714285714"),
    "decimals": ("30", "40"),
    "timestamps": ("1970-01-31 00:00:00", "1970-02-10 00:00:00"),
    "zoned": ("1970-01-31 00:00:00Z", "1970-02-10 00:00:00Z"),
}


def with_times(times: pa.Array) -> pa.Table:
    return make_rows(len(times)).append_column("when", times)


@pytest.mark.parametrize("kind", COLUMNS)
def test_earliest_rows_are_train_and_latest_test(tmp_path: Path, kind: str) -> None:
    made = prepare(write(with_times(COLUMNS[kind]), tmp_path / "raw", files=3), tmp_path / "out", BY_TIME)
    train, valid, test = ({int(DAYS[row]) for row in row_numbers(tmp_path / "out", split)} for split in SPLITS)
    assert max(train) < min(valid) <= max(valid) < min(test)
    assert len(train | valid | test) == len(train) + len(valid) + len(test) == len(set(DAYS.tolist()))
    shares = [made.splits[split].rows / ROWS for split in SPLITS]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.01), "as near as a hundred different days allow"
    assert "when" not in made.preprocessor.columns
    valid_from, test_from = BOUNDS[kind]
    rule = {"by": "time", "column": "when", "percent": "70/10/20", "valid from": valid_from, "test from": test_from}
    assert made.split_rule == rule
    assert read_manifest(tmp_path / "out").split_rule == rule


def test_same_sources_and_settings_are_not_prepared_again(tmp_path: Path) -> None:
    paths = write(with_times(COLUMNS["dates"]), tmp_path / "raw")
    made = prepare(paths, tmp_path / "out", BY_TIME)
    before = (tmp_path / "out/manifest.json").stat().st_ctime_ns
    assert prepare(paths, tmp_path / "out", BY_TIME, reuse=True) == made
    assert (tmp_path / "out/manifest.json").stat().st_ctime_ns == before


def test_no_test_split_takes_all_later_rows_for_valid(tmp_path: Path) -> None:
    paths = write(with_times(COLUMNS["integers"]), tmp_path / "raw")
    config = PrepareConfig(label=("y",), split_by_time="when", split="60/40/0")
    made = prepare(paths, tmp_path / "out", config)
    assert list(made.splits) == ["train", "valid"]
    assert made.splits["train"].rows / ROWS == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (pa.array([1, None] * 50), "time column 'when' is missing in 50 rows"),
        (pa.array([1.0, float("nan")] * 50), "time column 'when' is missing in 50 rows"),
        (pa.array([1, 2] * 50), "has 2 different values; 3 splits by time need at least 3"),
        (pa.array(["2013-01-02"] * 100), "split_by_time column 'when' is string; expected a date, timestamp or number"),
        (pa.array([*range(100)], pa.time32("s")), "'when' is time32.*; expected a date, timestamp or number"),
    ],
    ids=["null", "nan", "few", "text", "time of day"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_times_that_cannot_split_are_refused(tmp_path: Path, times: pa.Array, message: str, workers: int) -> None:
    paths = write(with_times(times), tmp_path / "raw")
    with pytest.raises(DataError, match=message):
        prepare(paths, tmp_path / "out", BY_TIME, workers=workers)
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize("other", [{"split_column": "s"}, {"split_by": "content"}])
def test_only_one_setting_decides_the_split(other: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="already determines the splits"):
        PrepareConfig(label=("y",), split_by_time="when", **other)  # type: ignore[arg-type]


@given(st.lists(st.one_of(st.floats(allow_nan=False, width=32), st.integers(-(2**62), 2**62)), min_size=1))
def test_keys_sort_as_values_do(values: list[float | int]) -> None:
    column = pa.array([float(value) for value in values], pa.float64())
    order = np.argsort(time_keys(column, "t", "x"), kind="stable")
    assert np.array_equal(column.to_numpy()[order], np.sort(column.to_numpy()))


@given(st.permutations(range(8)))
def test_counts_of_many_values_do_not_depend_on_their_order(order: list[int]) -> None:
    values: npt.NDArray[np.uint64] = np.random.default_rng(0).integers(0, 1 << 40, 800, dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_split, "MAX_VALUES", 64)
        found = []
        for places in (list(range(8)), order):
            counts = KeyCounts()
            for place in places:
                counts.add(values[place::8])
            found.append(counts.sorted())
    (keys, rows), (other_keys, other_rows) = found
    assert np.array_equal(keys, other_keys) and np.array_equal(rows, other_rows)
    assert rows.sum() == 800 and 32 < len(keys) <= 64
    assert rows[0] == np.count_nonzero(values < keys[1]), "a key is the smallest value that it stands for"
