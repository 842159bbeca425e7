"""What each column is for, by its type, and what footers say of it."""

import math
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, PrepareConfig, prepare
from dkan_core.config.prepare import MAX_WEIGHT
from dkan_core.data.preparation.task import find_task
from dkan_core.data.source.roles import check_roles, feature_columns


def test_kinds_of_many_columns_are_told_in_proportional_time() -> None:
    types = {f"n{number}": pa.uint8() for number in range(20_000)} | {f"s{number}": pa.string() for number in range(9)}
    started = time.process_time()
    found = feature_columns(types, "rows")
    assert len(found.numeric) == 20_000 and found.categorical == tuple(f"s{number}" for number in range(9))
    assert time.process_time() - started < 3  # in quadratic time it takes about 20 seconds


@pytest.mark.parametrize(
    ("values", "options", "is_refused"),
    [
        ([[None, None], [None], []], {}, True),
        ([[], [None, None]], {}, True),
        ([[None, None], [None, "a"]], {}, False),
        ([["a", None], [None, None]], {}, False),
        # Found out when the rows are read.
        ([[None, None], [None]], {"write_statistics": False}, False),
    ],
)
def test_column_without_any_value_is_refused_before_rows_are_read(
    tmp_path: Path, values: list[list[str | None]], options: dict[str, Any], is_refused: bool
) -> None:
    for index, found in enumerate(values):
        rows = pa.table(
            {"x": [1.5] * len(found), "city": pa.array(found, pa.string()), "y": pa.nulls(len(found), pa.int8())}
        )
        pq.write_table(rows, tmp_path / f"{index}.parquet", row_group_size=1, **options)
    config = PrepareConfig(label=("y",))
    if is_refused:
        with pytest.raises(DataError, match="column 'city' holds no value in any row; leave it out with --drop city"):
            find_task(tmp_path, config)
    else:
        assert find_task(tmp_path, config).roles.categorical == ("city",)
    assert find_task(tmp_path, PrepareConfig(label=("y",), drop=("city",))).roles.features == ["x"]
    assert find_task(tmp_path, PrepareConfig(label=("y", "city"))).roles.features == ["x"]


ROLES: dict[str, tuple[pa.Array, str]] = {
    "group": (pa.array(["a", None, "b"]), "group column 'role' is missing in 1 row; expected a group in each"),
    "split_column": (pa.array(["train", None, None]), r"split column 'role' must hold .*; found None \(2 rows\)"),
    "split_by_time": (pa.array([1, None, 3]), "time column 'role' is missing in 1 row; expected a time in each"),
    "weight": (pa.array([1.0, None, 2.0]), "weight column 'role' is missing in 1 row; expected a number in each"),
    "weight below 0": (pa.array([1, 0, -2]), r"weight column 'role' must be from 0 to 1e\+30; it holds -2"),
    "weight of decimals": (pa.array([Decimal("0.5"), Decimal("-0.5")]), "'role' must be from .* it holds -0.5"),
    "weight that is infinite": (pa.array([1.0, float("inf"), 2.0]), r"'role' must be from 0 to 1e\+30; it holds inf"),
}


@pytest.mark.parametrize("case", ROLES)
def test_row_without_a_group_time_split_or_weight_is_named_before_rows_are_read(tmp_path: Path, case: str) -> None:
    values, message = ROLES[case]
    named: dict[str, Any] = {case.partition(" ")[0]: "role"}
    config = PrepareConfig(label=("y",), **named)
    for name, found in {"a_row": values.slice(0, 1), "more": values}.items():
        table = pa.table({"x": [1.5] * len(found), "y": pa.nulls(len(found), pa.int8()), "role": found})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
    assert find_task(tmp_path / "a_row.parquet", config).roles.features == ["x"]
    with pytest.raises(DataError, match=rf"more\.parquet: .*{message}"):
        find_task(tmp_path, config)


def test_largest_weight_is_taken(tmp_path: Path) -> None:
    table = pa.table({"x": [1.5, 2.5], "y": [0, 1], "w": pa.array([0.0, MAX_WEIGHT], pa.float32())})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert find_task(tmp_path / "rows.parquet", PrepareConfig(label=("y",), weight="w")).rows == 2


@pytest.mark.parametrize("stored", ["statistics", "no statistics"])
def test_what_footers_do_not_say_of_weights_is_found_in_the_rows(tmp_path: Path, stored: str) -> None:
    table = pa.table({"x": [1.5, 2.5], "y": [0, 1], "w": [1.0, float("nan") if stored == "statistics" else -1.0]})
    pq.write_table(table, tmp_path / "rows.parquet", write_statistics=stored == "statistics")
    config = PrepareConfig(label=("y",), weight="w")
    assert find_task(tmp_path / "rows.parquet", config).roles.weight == "w"
    with pytest.raises(DataError, match=r"rows\.parquet: weight column 'w' (is missing in|.* it is not in) 1 row"):
        prepare(tmp_path / "rows.parquet", tmp_path / "out", config)


def test_column_without_any_value_cannot_be_added_to_an_encoding(tmp_path: Path) -> None:
    table = pa.table({"x": [float(row) for row in range(200)], "y": [row % 2 for row in range(200)]})
    pq.write_table(table, tmp_path / "old.parquet")
    prepare(tmp_path / "old.parquet", tmp_path / "old", PrepareConfig(label=("y",)))
    pq.write_table(table.append_column("more", pa.nulls(200, pa.float64())), tmp_path / "new.parquet")
    config = PrepareConfig(like=str(tmp_path / "old"), extend=True)
    with pytest.raises(DataError, match=r"new\.parquet: column 'more' holds no value in any row; .* --drop more"):
        find_task(tmp_path / "new.parquet", config)
    # Without extend it is ignored, and so is one that is dropped.
    ways: list[dict[str, Any]] = [{"extend": False}, {"drop": ("more",)}]
    for others in ways:
        assert find_task(tmp_path / "new.parquet", replace(config, **others)).roles.features == ["x"]


def test_field_of_a_struct_says_nothing_of_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    rows = {"s": [{"role": None}, {"role": None}], "s.role": [1.5, 2.5], "y": [0, 1], "role": [1, 2]}
    table = pa.table({**rows, "s": pa.array(rows["s"], pa.struct({"role": pa.float64()}))})
    pq.write_table(table, tmp_path / "rows.parquet")
    config = PrepareConfig(label=("y",), drop=("s",), weight="role")
    assert find_task(tmp_path / "rows.parquet", config).roles.features == ["s.role"]


def test_split_column_that_does_not_exist_is_named_once() -> None:
    config = PrepareConfig(label=("y",), split_column="spilt")
    with pytest.raises(DataError, match=r"^rows: split column 'spilt' does not exist; did you mean 'split'\?"):
        check_roles({"y": pa.int8(), "split": pa.string()}, config, "rows")


CONSTANT: dict[str, list[pa.Array]] = {
    "integers": [pa.array([1, 1, None]), pa.array([1, 1])],
    "booleans and numbers": [pa.array([True]), pa.array([1.0, math.nan]), pa.array([], pa.int8())],
    "nulls in a file": [pa.array([None], pa.int8()), pa.array([2])],
}
PERHAPS_NOT: dict[str, list[pa.Array]] = {
    "another value": [pa.array([1, 1]), pa.array([1, 0])],
    "another file": [pa.array([True]), pa.array([0.0])],
    "text": [pa.array(["late"]), pa.array(["late"])],
    "nulls alone": [pa.array([None, None], pa.int8())],
    "unknown": [pa.array([1.0]), pa.array([math.nan])],
}


def files_with(labels: list[pa.Array], folder: Path, **options: Any) -> list[str]:
    paths = [str(folder / f"{number}.parquet") for number in range(len(labels))]
    for path, label in zip(paths, labels, strict=True):
        pq.write_table(pa.table({"x": np.arange(len(label)), "y": label}), path, **options)
    return paths


@pytest.mark.parametrize("labels", CONSTANT.values(), ids=CONSTANT)
def test_label_of_one_value_is_found_in_the_footers(labels: list[pa.Array], tmp_path: Path) -> None:
    paths = files_with(labels, tmp_path, row_group_size=2)
    with pytest.raises(DataError, match=r"'y' has one class only: (True|1|2) in every row with a value"):
        find_task(paths, PrepareConfig(label=("y",)))
    task = find_task(files_with(labels, tmp_path, write_statistics=False), PrepareConfig(label=("y",)))
    assert task.roles.labels == ("y",), "only the rows can tell"


@pytest.mark.parametrize("labels", PERHAPS_NOT.values(), ids=PERHAPS_NOT)
def test_label_of_perhaps_several_values_is_read(labels: list[pa.Array], tmp_path: Path) -> None:
    task = find_task(files_with(labels, tmp_path), PrepareConfig(label=("y",)))
    assert task.roles.labels == ("y",) and sum(file.rows for file in task.files) == sum(map(len, labels))
