"""Columns in the names of folders: read as they would be from the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, PrepareConfig, append_rows, plan_scoring, predict, prepare, score_part
from dkan_core.data.source.folders import infer_type
from dkan_core.scoring.output_columns import probability_column
from tests.data.tables import contents, make_rows
from tests.onnx_export.models import random_model

FOLDERS = [("2023", "2024-05-31", "10001"), ("2024", "2024-06-01", "07030"), ("2025", "2024-06-02", "New%20York")]


def partitioned(folder: Path) -> pa.Table:
    """Write three files by year, day and place; return the rows with these in columns."""
    tables = []
    rows = make_rows(600).drop(["row"])
    for index, (year, day, place) in enumerate(FOLDERS):
        part = rows.slice(index * 200, 200)
        path = folder / f"year={year}" / f"day={day}" / f"place={place}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(part, path, row_group_size=50)
        columns = {
            "year": pa.array([int(year)] * 200),
            "day": pa.array([day] * 200).cast(pa.date32()),
            "place": [place.replace("%20", " ")] * 200,
        }
        for name, values in columns.items():
            part = part.append_column(name, pa.array(values))
        tables.append(part)
    return pa.concat_tables(tables)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    # A folder above the source has no column in it.
    folder = tmp_path_factory.mktemp("folders") / "run=7" / "raw"
    return folder, partitioned(folder)


@pytest.mark.parametrize("changes", [{}, {"split_by": "content"}, {"group": "place"}, {"split_by_time": "day"}])
def test_folders_give_what_columns_give(raw: tuple[Path, pa.Table], tmp_path: Path, changes: dict[str, Any]) -> None:
    folder, table = raw
    config = PrepareConfig(label=("y",), split="34/33/33", **changes)
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=50)
    wanted = prepare(tmp_path / "whole.parquet", tmp_path / "whole", config)
    found = prepare(folder, tmp_path / "out", config)
    assert found.preprocessor == wanted.preprocessor
    assert sorted(found.preprocessor.columns) == sorted(
        {"x", "age", "city", "year", "day", "place"} - {*changes.values()}
    )
    shards = contents(tmp_path / "out") | {"manifest.json": b""}
    assert shards == contents(tmp_path / "whole") | {"manifest.json": b""}
    prepare(folder / "year=*", tmp_path / "matched", config)
    assert contents(tmp_path / "matched") | {"manifest.json": b""} == shards
    prepare(folder / "year=*/*/*/*.parquet", tmp_path / "parts", config, workers=2)
    assert contents(tmp_path / "parts") | {"manifest.json": b""} == shards


def test_one_file_is_scored_with_the_names_of_its_folders(raw: tuple[Path, pa.Table], tmp_path: Path) -> None:
    folder, table = raw
    model = random_model(
        tmp_path / "model",
        rows=table,
        numeric=("x", "year"),
        times=("day",),
        categories=("city", "place"),
        labels=("y",),
        members=1,
    )
    pq.write_table(table.slice(0, 200), tmp_path / "first.parquet")
    outs = []
    for index, source in enumerate((tmp_path / "first.parquet", next((folder / "year=2023").rglob("*.parquet")))):
        predict(model, source, tmp_path / f"{index}.parquet", columns=["place", "x", "year"])
        outs.append(pq.read_table(tmp_path / f"{index}.parquet"))
    assert outs[0].equals(outs[1])
    assert len(np.unique(outs[0][probability_column("y")])) > 1
    odd = folder.parent / "odd" / "year=now" / "day=2024-05-31" / "place=7" / "a.parquet"
    odd.parent.mkdir(parents=True)
    pq.write_table(make_rows(10), odd)
    with pytest.raises(DataError, match="folder year=now: expected double there"):
        predict(model, odd, tmp_path / "out.parquet")


def test_whole_numbers_in_names_of_folders_are_copied_exactly(tmp_path: Path) -> None:
    rows = make_rows(600).append_column("key", pa.array(np.arange(600)))
    model = random_model(tmp_path / "model", rows=rows, numeric=("x", "key"), categories=())
    keys = ["9007199254740993", "7", "__HIVE_DEFAULT_PARTITION__"]
    for key in keys:
        (tmp_path / "new" / f"key={key}").mkdir(parents=True)
        pq.write_table(make_rows(10).select(["x"]), tmp_path / "new" / f"key={key}" / "a.parquet")
    predict(model, tmp_path / "new", tmp_path / "out.parquet", columns=["key"])
    copied = pq.read_table(tmp_path / "out.parquet")["key"]
    assert copied.type == pa.int64() and {*copied.to_pylist()} == {9007199254740993, 7, None}
    (tmp_path / "new" / "key=0.5").mkdir()
    pq.write_table(make_rows(10).select(["x"]), tmp_path / "new" / "key=0.5" / "a.parquet")
    predict(model, tmp_path / "new", tmp_path / "out.parquet", columns=["key"], overwrite=True)
    assert {*pq.read_table(tmp_path / "out.parquet")["key"].to_pylist()} == {0.5, 7.0, 9007199254740992.0, None}
    # The scores of several files have the same type.
    for part in plan_scoring(model, tmp_path / "new", tmp_path / "scores", columns=["key"], parts=2):
        score_part(tmp_path / "scores", part)
    kinds = {pq.read_schema(path).field("key").type for path in (tmp_path / "scores").rglob("a.parquet")}
    assert kinds == {pa.float64()}


@pytest.mark.parametrize("text", ["2024-W01-1", "2024-02-30", "\N{ARABIC-INDIC DIGIT SEVEN}"])
def test_names_that_arrow_reads_neither_as_dates_nor_as_numbers_are_text(text: str) -> None:
    assert infer_type([text]) == "string"


def test_new_rows_are_read_as_those_of_the_model(raw: tuple[Path, pa.Table], tmp_path: Path) -> None:
    """A place that is a number is a category still, as other places were none."""
    folder, _ = raw
    fitted = prepare(folder, tmp_path / "out", PrepareConfig(label=("y",)))
    new = folder.parent / "new"
    for (year, day, _), place in zip(FOLDERS[:2], ("10001", "5"), strict=True):
        path = new / f"year={year}" / f"day={day}" / f"place={place}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(make_rows(300).drop(["row"]), path)
    again = prepare(new, tmp_path / "again", PrepareConfig(like=str(tmp_path / "out")))
    assert again.preprocessor == fitted.preprocessor
    # Of one file, too, all folders count that the model knows.
    single = prepare(next(new.rglob("*.parquet")), tmp_path / "one", PrepareConfig(like=str(tmp_path / "out")))
    assert single.preprocessor == fitted.preprocessor
    rows = {split: info.rows for split, info in fitted.splits.items()}
    added = append_rows(next(new.rglob("*.parquet")), tmp_path / "out")
    assert sum(info.rows for info in added.splits.values()) == sum(rows.values()) + 300


def test_months_of_two_digits_are_numbers_and_codes_that_begin_with_zero_are_text(tmp_path: Path) -> None:
    for month in range(1, 13):
        path = tmp_path / "raw" / f"month={month:02d}" / f"zip={month * 411:05d}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(make_rows(100, seed=month).drop(["row"]), path)
    made = prepare(tmp_path / "raw", tmp_path / "out", PrepareConfig(label=("y",), split_by_time="month"))
    assert made.split_rule["test from"] == "11"
    assert "zip" in {feature.name for feature in made.preprocessor.coded if feature.kind == "category"}
    encoding = prepare(tmp_path / "raw", tmp_path / "plain", PrepareConfig(label=("y",))).preprocessor
    assert next(each.knots for each in encoding.numeric if each.name == "month") == [*range(1, 13)]


def test_files_with_and_without_a_folder_of_that_name_are_refused(tmp_path: Path) -> None:
    partitioned(tmp_path / "raw")
    pq.write_table(make_rows(100).drop(["row"]), tmp_path / "raw" / "a.parquet")
    with pytest.raises(DataError, match="column 'year' is missing"):
        prepare(tmp_path / "raw", tmp_path / "out", PrepareConfig(label=("y",)))


@pytest.mark.parametrize("role", ["group", "split_by_time", "weight", "split_column"])
def test_missing_value_that_each_row_needs_is_named_before_rows_are_read(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("3", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / "raw" / f"level={name}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(make_rows(30).drop(["row"]), path)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    settings: dict[str, Any] = {"label": ("y",), role: "level"}
    with pytest.raises(DataError, match=r"__HIVE_DEFAULT_PARTITION__/a\.parquet: .* column 'level' .*30 rows"):
        prepare(tmp_path / "raw", tmp_path / "out", PrepareConfig(**settings))


def test_missing_value_and_column_of_the_file(tmp_path: Path) -> None:
    for name in ("__HIVE_DEFAULT_PARTITION__", "3"):
        path = tmp_path / "raw" / f"level={name}" / "x=5" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(make_rows(300).drop(["row"]), path)
    encoding = prepare(tmp_path / "raw", tmp_path / "out", PrepareConfig(label=("y",))).preprocessor
    knots = {feature.name: feature.knots for feature in encoding.numeric}
    assert knots["level"] == [3.0], "the other file's value is missing"
    assert len(knots["x"]) > 100, "the file's own column"
