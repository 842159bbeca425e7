"""What each column is for, by its type."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, PrepareConfig
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
        rows = pa.table({"x": [1.5] * len(found), "city": pa.array(found, pa.string()), "y": [0] * len(found)})
        pq.write_table(rows, tmp_path / f"{index}.parquet", row_group_size=1, **options)
    config = PrepareConfig(label=("y",))
    if is_refused:
        with pytest.raises(DataError, match="column 'city' holds no value in any row; leave it out with --drop city"):
            find_task(tmp_path, config)
    else:
        assert find_task(tmp_path, config)[0].schema.categorical == ("city",)
    assert find_task(tmp_path, PrepareConfig(label=("y",), drop=("city",)))[0].schema.features == ["x"]
    assert find_task(tmp_path, PrepareConfig(label=("y",), group="city"))[0].schema.features == ["x"]


def test_split_column_that_does_not_exist_is_named_once() -> None:
    config = PrepareConfig(label=("y",), split_column="spilt")
    with pytest.raises(DataError, match=r"^rows: split column 'spilt' does not exist; did you mean 'split'\?"):
        check_roles({"y": pa.int8(), "split": pa.string()}, config, "rows")
