"""Dates, times, durations, decimals and large integers: taken in alike wherever rows are encoded."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, FastKANClassifier, PrepareConfig, predict, prepare
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.times import read_part, time_parts
from dkan_core.evaluation.drift.scored_files import measure_drift
from dkan_core.explanation.columns import source_columns
from dkan_core.explanation.inverse_transform import inverse_transform
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export.export import onnx_bytes
from dkan_core.scoring.probabilities import score
from dkan_core.serving.rows import Tensor, rows_of_instances, rows_of_tensors
from dkan_core.tracking.mlflow.model import MlflowScorer, example_of
from tests.data.tables import contents, write
from tests.onnx_export.models import random_model

ZONE = "Europe/Berlin"
BEGIN = np.datetime64("2024-01-01T00:30:00", "us")
CONFIG = PrepareConfig(label=("y",))


def make_rows(rows: int = 600) -> pa.Table:
    """Rows whose label is whether it is afternoon in Berlin."""
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, 366 * 86400, rows)
    departure = pa.array(BEGIN + seconds.astype("timedelta64[s]"), mask=rng.random(rows) < 0.05)
    zoned = departure.cast(pa.timestamp("us", ZONE))
    hour = pa.compute.hour(zoned).fill_null(0).to_numpy()
    return pa.table(
        {
            "departure": zoned,
            "ordered": departure,
            "day": departure.cast(pa.date32(), safe=False),
            "took": pa.array(seconds % 5000, pa.duration("ms")),
            "clock": pa.array(seconds % 86400, pa.int32()).cast(pa.time32("s")),
            "price": pa.array([decimal.Decimal(int(value)) / 100 for value in seconds % 9999], pa.decimal128(9, 2)),
            "key": (seconds % 200).astype(np.uint64) << np.uint64(56),
            "count": pa.array((seconds % 50).astype(np.uint64), pa.uint64()),
            "city": rng.choice(np.array(["Oslo", "Rome"]), rows).tolist(),
            "y": (hour >= 12).astype(np.int8),
        }
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(make_rows(), tmp_path_factory.mktemp("raw") / "raw", files=3, row_group_size=100)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return SavedModel(
        random_model(
            tmp_path_factory.mktemp("model") / "model",
            rows=make_rows(),
            numeric=("took", "clock", "price", "key", "count"),
            times=("departure", "ordered", "day"),
            categories=("city",),
            labels=("y",),
            members=1,
        )
    )


def test_each_part_of_the_calendar_is_a_feature(source: list[Path], tmp_path: Path) -> None:
    encoding = prepare(source, tmp_path / "out", CONFIG).preprocessor
    names = [feature.name for feature in encoding.numeric]
    assert names == [
        *("took", "clock", "price", "key", "count"),
        *("departure", "departure.month", "departure.day", "departure.weekday", "departure.hour"),
        *("ordered", "ordered.month", "ordered.day", "ordered.weekday", "ordered.hour"),
        *("day", "day.month", "day.day", "day.weekday"),
    ]
    knots = {feature.name: feature.knots for feature in encoding.numeric}
    assert knots["departure.hour"] == [*range(24)]
    assert knots["departure.weekday"] == [*range(7)]
    assert max(knots["took"]) < 5  # milliseconds, in seconds
    assert encoding.columns[5:8] == ["departure", "ordered", "day"]
    assert Preprocessor.from_dict(encoding.to_dict()) == encoding


def test_workers_and_content_splits_take_in_the_same(source: list[Path], tmp_path: Path) -> None:
    config = PrepareConfig(label=("y",), split_by="content")
    prepare(source, tmp_path / "alone", config)
    prepare(source, tmp_path / "parts", config, workers=2)
    assert contents(tmp_path / "parts") == contents(tmp_path / "alone")
    prepare(source, tmp_path / "alone", config, reuse=True)


def test_parts_that_do_not_vary_are_left_out(tmp_path: Path) -> None:
    rows = make_rows(200)
    table = pa.table({"day": pa.array([datetime.date(2024, 5, 1 + n % 2) for n in range(200)]), "y": rows["y"]})
    encoding = prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG).preprocessor
    assert [feature.name for feature in encoding.numeric] == ["day", "day.day", "day.weekday"]


@pytest.mark.parametrize(
    ("kind", "part", "wanted"),
    [
        (pa.timestamp("s"), "seconds", -0.0),
        (pa.timestamp("ns"), "hour", 0),
        (pa.date32(), "weekday", 3),
        (pa.date64(), "month", 1),
        (pa.timestamp("us", "America/New_York"), "hour", 19),
        (pa.timestamp("us", "+02:00"), "hour", 2),
    ],
)
def test_parts_are_those_of_the_first_second_of_1970(kind: Any, part: str, wanted: float) -> None:
    column = pa.array([0, None], pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    found = {str(each.part): read_part(column, each, "rows") for each in time_parts("t", kind)}
    assert found[part].to_pylist() == [wanted, None]


def test_hours_are_those_of_the_zone_of_training(saved: SavedModel) -> None:
    rows = make_rows(50)
    departure = rows["departure"].combine_chunks()
    elsewhere = rows.set_column(0, "departure", departure.cast(pa.timestamp("ns", "UTC")))
    before, after = (saved.preprocessor.transform(table, "rows") for table in (rows, elsewhere))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def in_two_zones(rows: pa.Table, folder: Path) -> Path:
    """Write rows as two files, whose times of departure are in two time zones."""
    there = rows.set_column(0, "departure", rows["departure"].cast(pa.timestamp("ns", "America/New_York")))
    half = len(rows) // 2
    folder.mkdir()
    for index, part in enumerate((there.slice(0, half), rows.slice(half))):
        pq.write_table(part, folder / f"part-{index}.parquet")
    return folder


def test_files_in_several_zones_are_read_in_that_of_the_encoding(source: list[Path], tmp_path: Path) -> None:
    prepare(source, tmp_path / "first", CONFIG)
    like = PrepareConfig(like=str(tmp_path / "first"))
    raw = in_two_zones(make_rows(), tmp_path / "raw")
    wanted, found = prepare(source, tmp_path / "wanted", like), prepare(raw, tmp_path / "found", like)
    assert found.splits == wanted.splits


def test_files_in_several_zones_are_refused_where_a_feature_depends_on_it(tmp_path: Path) -> None:
    rows = make_rows().filter(pc.field("departure").is_valid())
    raw, plain = in_two_zones(rows, tmp_path / "raw"), write(rows, tmp_path / "plain")
    with pytest.raises(DataError, match=r"'departure' is .*Berlin.*New_York.*; convert both to one time zone: month,"):
        prepare(raw, tmp_path / "out", CONFIG)
    by_time = PrepareConfig(label=("y",), split_by_time="departure")
    assert prepare(raw, tmp_path / "out", by_time).splits == prepare(plain, tmp_path / "plain-out", by_time).splits


@pytest.fixture(scope="module")
def wanted(saved: SavedModel, source: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("scores") / "scores.parquet"
    predict(saved.folder, source, out, columns=["departure"], reasons=2)
    table = pq.read_table(out)
    assert table.schema.field("departure").type == pa.timestamp("us", ZONE)
    named = {reason["column"] for reasons in table["y_reasons"].to_pylist() for reason in reasons}
    assert named <= {column.name for column in source_columns(saved.preprocessor)}
    assert "departure.hour" in named
    return table["y_probability"].to_numpy()


def instances(table: pa.Table) -> list[dict[str, Any]]:
    seconds = {
        "took": lambda value: value.total_seconds(),
        "clock": lambda value: value.hour * 3600 + value.minute * 60 + value.second,
    }
    return [
        {
            name: None
            if value is None
            else seconds[name](value)
            if name in seconds
            else float(value)
            if isinstance(value, decimal.Decimal)
            else value.isoformat()
            if isinstance(value, datetime.date)
            else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def test_requests_and_frames_are_scored_alike(saved: SavedModel, wanted: Any) -> None:
    table = make_rows()
    rows = rows_of_instances(instances(table), saved.preprocessor)
    device = next(saved.module.parameters()).device
    assert np.array_equal(score(saved.module, saved.preprocessor.transform(rows, "r"), device)[:, 0], wanted)
    scorer = MlflowScorer(saved.folder)
    assert np.array_equal(scorer.predict(table.to_pandas())["y_probability"], wanted)
    example = example_of(saved.preprocessor)
    # As MLflow's servers get it.
    as_text = pd.DataFrame(json.loads(example.to_json(orient="records", date_format="iso")))
    assert isinstance(as_text[next(iter(saved.preprocessor.times))][0], str)
    expected = scorer.predict(example)
    assert len(expected) == 1
    np.testing.assert_array_equal(scorer.predict(as_text), expected)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NaT])
def test_mlflow_scores_a_row_without_a_time(saved: SavedModel, missing: Any) -> None:
    """A frame of one row has no dates, or none with a zone, for a column that is missing there."""
    scorer, row = MlflowScorer(saved.folder), make_rows(1).to_pandas()
    for name, zone in saved.preprocessor.times.items():
        typed = pd.Series([pd.NaT]).astype("datetime64[us]").dt.tz_localize(zone)
        assert scorer.predict(row.assign(**{name: missing})).equals(scorer.predict(row.assign(**{name: typed}))), name


def test_values_that_are_read_back_from_prepared_data_encode_alike(saved: SavedModel) -> None:
    encoding = saved.preprocessor
    stored = encoding.transform(make_rows(300), "rows")
    again = encoding.transform(inverse_transform(stored, encoding), "prepared")
    hour = [feature.name for feature in encoding.numeric].index("departure.hour")
    assert np.array_equal(again["numeric"][:, hour], stored["numeric"][:, hour])


def number(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value


def test_tensors_hold_times_as_text(saved: SavedModel) -> None:
    given = instances(make_rows(5).drop(["y"]))
    types = saved.preprocessor.source_types
    tensors = [
        Tensor(name, "FP64" if kind == pa.float64() else "BYTES", [5], [number(row[name]) for row in given])
        for name, kind in types.items()
    ]
    assert rows_of_tensors(tensors, saved.preprocessor).equals(rows_of_instances(given, saved.preprocessor))


def test_requests_may_have_more_digits_than_microseconds(saved: SavedModel) -> None:
    given = instances(make_rows(3))
    for row, text in zip(
        given, ("2024-05-31T18:00:00.123456789+02:00", None, "2024-05-31T16:00:00.123456Z"), strict=True
    ):
        row["departure"] = text
    first, none, last = rows_of_instances(given, saved.preprocessor)["departure"]
    assert first == last and not none.is_valid


@pytest.mark.parametrize("value", ["yesterday", "2024-05-01T12:00:00", 5])
def test_requests_with_other_times_are_refused_by_row(saved: SavedModel, value: Any) -> None:
    given = instances(make_rows(3))
    given[1]["departure"] = value
    with pytest.raises(DataError, match=r"request.*'departure'") as refused:
        rows_of_instances(given, saved.preprocessor)
    if isinstance(value, str):
        assert "row 1" in str(refused.value) and "2024-05-31T18:00:00+02:00" in str(refused.value)


def test_drift_counts_the_parts(saved: SavedModel, source: list[Path]) -> None:
    drift = measure_drift(saved.folder, source)
    found = {column.name: column.psi for column in drift.columns}
    assert found["departure.hour"] is not None and found["departure.hour"] < 0.1


def test_times_are_refused_where_they_cannot_be_read(saved: SavedModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'departure' holds dates or times"):
        onnx_bytes(saved)
    rows = make_rows(100)
    naive = rows.set_column(0, "departure", rows["departure"].cast(pa.timestamp("us")))
    with pytest.raises(DataError, match=r"'departure' is timestamp\[us\].*with a zone \(Europe/Berlin\)"):
        predict(saved.folder, write(naive, tmp_path / "naive"), tmp_path / "out.parquet")
    clash = rows.append_column("departure.hour", rows["count"])
    with pytest.raises(DataError, match=r"'departure\.hour' is also made from 'departure'"):
        prepare(write(clash, tmp_path / "clash"), tmp_path / "out", CONFIG)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.list_(pa.float32()), pa.struct([("a", pa.int64())]), pa.binary()]
)
def test_nested_and_binary_columns_are_refused_by_name(kind: Any, tmp_path: Path) -> None:
    table = make_rows(100).append_column("odd", pa.nulls(100, kind))
    with pytest.raises(DataError, match=r"column 'odd' is .*a number, string, boolean, date"):
        prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG)


def test_classifier_takes_frames_with_times() -> None:
    frame = make_rows(300).to_pandas()
    X, y = frame[["departure", "day", "count"]], frame["y"]
    classifier = FastKANClassifier(epochs=1, hidden=(4,), device="cpu").fit(X, y)
    assert classifier.predict_proba(X).shape == (300, 2)


def test_times_of_spark_outside_the_range_of_nanoseconds_are_what_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = np.datetime64("2020-01-01", "us") + rng.integers(0, 10**13, 400).astype("timedelta64[us]")
    times[::10] = np.datetime64("9999-12-31")
    table = pa.table({"x": rng.normal(size=400), "t": times, "y": rng.integers(2, size=400)})
    for name in ("microseconds", "int96"):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "rows.parquet", use_deprecated_int96_timestamps=name == "int96")
        prepare(tmp_path / name, tmp_path / f"out-{name}", PrepareConfig(label=("y",), split_by_time="t", drop=()))
    first, second = (contents(tmp_path / f"out-{name}") for name in ("microseconds", "int96"))
    shards = [name for name in first if name.endswith(".safetensors")]
    assert shards and [first[name] for name in shards] == [second[name] for name in shards]
