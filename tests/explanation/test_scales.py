"""Axes of numbers and times, and how values are written."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, evaluate, explain, prepare, train
from dkan_core.explanation.grid import _points_of
from dkan_core.explanation.reasons import value_texts
from dkan_core.explanation.scales import MOST_TIMES, Scale, time_ticks

BEGIN = 1_357_084_800
"""2013-01-02."""


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (100, ["2013-01-02 00:00", "2013-01-02 00:01"]),
        (86_400, ["2013-01-02 00:00", "2013-01-02 12:00", "2013-01-03 00:00"]),
        (3 * 86_400, ["2013-01-02", "2013-01-03", "2013-01-04", "2013-01-05"]),
        (400 * 86_400, ["2013-04", "2013-07", "2013-10", "2014-01"]),
        (3_000 * 86_400, ["2014", "2015", "2016", "2017", "2018", "2019", "2020", "2021"]),
    ],
)
def test_times_have_ticks_at_round_ones(seconds: int, texts: list[str]) -> None:
    assert [text for _, text in time_ticks(BEGIN, BEGIN + seconds)] == texts


@pytest.mark.parametrize("power", np.linspace(1.5, 11, 20))
@pytest.mark.parametrize("low", [-6e10, -12_345.6, 0.0, BEGIN + 0.5])
def test_times_of_any_range_have_some_ticks_inside(low: float, power: float) -> None:
    high = low + 10.0**power
    ticks = time_ticks(low, high)
    assert len(ticks) <= max(MOST_TIMES.values()) and all(low <= tick <= high for tick, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)
    assert ticks or power < 2, "a range of two minutes has one"


@pytest.mark.parametrize("model", ["auto", "additive"])
def test_numbers_of_any_size_are_explained(tmp_path: Path, model: Literal["auto", "additive"]) -> None:
    """Sentinels such as the largest float64, and ranges that span all that it has."""
    rng = np.random.default_rng(0)
    x, share = rng.normal(size=1500), rng.random(1500)
    largest = np.finfo(np.float64).max
    sentinels = np.select([share < 0.05, share < 0.1], [largest, -largest], x)
    columns = {"sentinels": sentinels, "uniform": (share - 0.5) * 2 * largest, "powers": 10.0 ** (x * 90)}
    pq.write_table(pa.table({**columns, "tiny": x * 1e-300, "y": (x > 0.5).astype(np.int8)}), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("y",)))
    config = TrainConfig(model=model, epochs=1, device="cpu", workers=1)
    run = train(tmp_path / "data", tmp_path / "run", config)
    assert evaluate(run.model, tmp_path / "data", tmp_path / "eval", explain=False).metrics["roc_auc"] > 0.9
    found = explain(run.model, tmp_path / "data", tmp_path / "learned").labels["y"]
    assert {*columns} <= {curve.name for curve in found.curves}


def test_dates_and_weekdays_are_written_as_such(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    days = rng.integers(15_000, 15_900, 1500).astype(np.int32)
    y = (np.sin(days / 60) + ((days + 3) % 7 > 4) + rng.normal(size=1500) > 1).astype(np.int8)
    table = pa.table({"when": pa.array(days).cast(pa.date32()), "x": rng.normal(size=1500), "y": y})
    pq.write_table(table, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("y",)))
    run = train(tmp_path / "data", tmp_path / "run", TrainConfig(hidden=(8,), members=1, epochs=2, device="cpu"))
    found = explain(run.model, tmp_path / "data", tmp_path / "learned").labels["y"]
    curves = {curve.name: curve for curve in found.curves}
    assert curves["when"].scale == "time" and curves["when"].formula is None
    assert all(
        np.datetime64(point.name[:10]) == np.datetime64(int(point.value or 0), "s").astype("datetime64[D]")
        for point in curves["when"].points
    )
    assert [point.name for point in curves["when.weekday"].points] == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert ">2012-01</text>" in (tmp_path / "learned" / "curves" / "when.svg").read_text()
    evaluated = evaluate(run.model, tmp_path / "data", tmp_path / "eval", slices=("when", "when.weekday"))
    slices = evaluated.metrics["slices"]["columns"]
    assert slices["when"][0]["level"].startswith("2011-01-") and slices["when.weekday"][0]["level"].startswith("Mon")
    assert re.search(r"when = 201\d-\d\d-\d\d <", (tmp_path / "eval" / "report.html").read_text())


@pytest.mark.parametrize(
    ("zone", "beyond", "text"),
    [
        (None, 0, "2013-01-02"),
        (None, 10**9, "2013-01-02 00:00:01"),
        ("UTC", 0, "2013-01-02 00:00:00Z"),
        ("Asia/Tokyo", 0, "2013-01-02 09:00:00+0900"),
        (None, 5 * 10**8, "2013-01-02 00:00:00.500000000"),
    ],
)
def test_reasons_write_clocks_and_fractions_of_seconds_where_there_are(
    zone: str | None, beyond: int, text: str
) -> None:
    times = pa.array([int(1_357_084_800e9) + beyond, None], pa.timestamp("ns", zone))
    assert value_texts(times).to_pylist() == [text, None]


def test_reasons_write_durations_in_seconds_and_times_of_the_day_as_clocks_do() -> None:
    durations = pa.array([90_000, 1_500, None], pa.duration("ms"))
    assert value_texts(durations).to_pylist() == ["90", "1.5", None]
    assert value_texts(pa.array([3_720_000_000, None], pa.time64("us"))).to_pylist() == ["01:02:00", None]


def test_neighbouring_floats_are_points_of_their_own() -> None:
    points = np.array([0.0, 5e-324, 1e15, 1e15 + 0.125, 1e15 + 0.25])
    found = _points_of(points, np.empty(0), Scale("linear"), np.repeat(points, [3, 1, 2, 1, 2]))
    assert np.bincount(found).tolist() == [3, 1, 2, 1, 2]
