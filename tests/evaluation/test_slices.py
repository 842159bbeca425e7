"""Metrics of slices are those of their rows alone, and every row is in one slice of a column."""

import html
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dkan_core
from dkan_core import (
    ConfigError,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    evaluate,
    explain,
    inspect_data,
    prepare,
    train,
)
from dkan_core.data.format.manifest import read_manifest
from dkan_core.evaluation.metrics import compute_metrics

ROWS = 1500
SMALL = TrainConfig(epochs=4, hidden=(4,), batch_size=64, learning_rate=0.02, device="cpu", strategy="single")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw rows with a city that decides how noisy the label is, and a model of them."""
    folder = tmp_path_factory.mktemp("slices")
    random = np.random.default_rng(0)
    city = random.choice(np.array(["Oslo", "Rome", None], object), ROWS, p=[0.6, 0.3, 0.1])
    x = random.normal(size=ROWS)
    noise = np.where(city == "Rome", 3.0, 0.3) * random.normal(size=ROWS)
    age = np.where(random.random(ROWS) < 0.2, np.nan, random.integers(18, 80, ROWS))
    label = (x + noise > 0.8).astype(np.int8)
    columns = {"x": x, "city": pa.array(city.tolist()), "age": pa.array(age, from_pandas=True), "y": label}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "prepared", PrepareConfig(label=("y",)))
    train(folder / "prepared", folder / "run", SMALL)
    return folder


def test_each_slice_has_the_metrics_of_its_rows(folder: Path, tmp_path: Path) -> None:
    found = evaluate(folder / "run", folder / "rows.parquet", tmp_path / "eval", explain=False, slices=["city", "age"])
    columns = found.metrics["slices"]["columns"]
    assert found.metrics["slices"]["label"] == "y" and list(columns) == ["city", "age"]
    table = pq.read_table(folder / "rows.parquet")
    cities = {slice_["level"]: slice_ for slice_ in columns["city"]}
    assert list(cities) == ["Oslo", "Rome", "missing"], "by decreasing frequency"
    for level, slice_ in cities.items():
        rows = np.array([(value or "missing") == level for value in table["city"].to_pylist()])
        wanted = compute_metrics(found.labels[rows], found.probabilities[rows], ["y"])
        assert slice_["rows"] == rows.sum()
        for key in ("average_precision", "roc_auc", "prevalence"):
            assert slice_[key] == pytest.approx(wanted[key])
        low, high = slice_["average_precision_interval"]
        assert low < slice_["average_precision"] < high
    assert cities["Rome"]["roc_auc"] < cities["Oslo"]["roc_auc"] - 0.1
    assert [slice_["level"] for slice_ in columns["age"]][-1] == "missing" and len(columns["age"]) == 6
    for levels in columns.values():
        assert sum(slice_["rows"] for slice_ in levels) == ROWS
    page = (tmp_path / "eval/report.html").read_text()
    assert "Performance by slice" in page and '<th scope="row" class="name">Rome</th>' in page


def test_number_of_few_values_has_a_level_for_each(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "rows.parquet")
    ages = pa.array(np.random.default_rng(1).integers(2, 8, ROWS) * 10.0)
    pq.write_table(table.set_column(table.schema.names.index("age"), "age", ages), tmp_path / "rows.parquet")
    found = evaluate(folder / "run", tmp_path / "rows.parquet", tmp_path / "eval", explain=False, slices=["age"])
    levels = [slice_["level"] for slice_ in found.metrics["slices"]["columns"]["age"]]
    assert levels == ["20", "30", "40", "50", "60", "70"]


def test_most_important_columns_are_taken_where_none_is_named(folder: Path, tmp_path: Path) -> None:
    metrics = evaluate(folder / "run", folder / "prepared", tmp_path / "eval").metrics
    assert set(metrics["slices"]["columns"]) == {"x", "city", "age"}


def test_results_show_themselves_in_a_line_and_in_a_notebook(folder: Path, tmp_path: Path) -> None:
    found = evaluate(folder / "run", folder / "prepared", tmp_path / "eval", explain=False)
    precision = found.metrics["average_precision"]
    assert repr(found).startswith(f"Evaluation(test: average precision {precision:.4f}, ROC AUC ")
    shown = found._repr_html_()
    assert f"<td>{precision:.4f}</td>" in shown and html.escape((tmp_path / "eval/report.html").read_text()) in shown
    prepared = read_manifest(folder / "prepared")
    assert str(prepared) == repr(prepared) and repr(prepared).endswith("rows; 3 columns; labels y)")
    result = TrainResult(average_precision=0.5, model="run/model", metrics={}, history=[{"epoch": 2.0}])
    assert repr(result) == "TrainResult(average_precision=0.5000, model='run/model'; epoch 2)"
    learned = explain(folder / "run", folder / "prepared", tmp_path / "learned", rows=50, top=1)
    assert len(repr(learned)) < 200 and "labels={'y': LabelExplanation(label='y'" in repr(learned)
    assert html.escape((tmp_path / "learned/explanation.html").read_text()) in (learned._repr_html_() or "")
    assert "page" not in learned.to_dict() and replace(learned, page="")._repr_html_() is None
    facts = inspect_data(folder / "prepared")
    facts.save_page(tmp_path / "facts.html")
    assert len(repr(facts)) < 400 and html.escape((tmp_path / "facts.html").read_text()) in facts._repr_html_()
    tables = (dkan_core.Drift, dkan_core.EditResult, dkan_core.Plan, dkan_core.SlicePlan, dkan_core.SyncBench)
    assert all(vars(kind)["__repr__"] is vars(kind)["__str__"] for kind in (*tables, dkan_core.TuneResult))


def test_report_says_what_made_it_and_when(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = folder / "run", folder / "prepared"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("one", "two"):
        evaluate(model, data, tmp_path / name, split="valid", slices=("city",), explain=False, worst_errors=4)
    one, two = ((tmp_path / name / "report.html").read_text() for name in ("one", "two"))
    assert one == two and "<td>2023-11-14 22:13 UTC</td>" in one
    assert f"<td>dkan evaluate {model} {data} --split valid --slice city --no-explain --worst-errors 4</td>" in one
    assert read_manifest(data).fingerprint in one
    assert f"<td>dkan {dkan_core.__version__}, torch {torch.__version__}, numpy " in one
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    evaluate(model, data, tmp_path / "now", explain=False)
    assert f"<td>{datetime.now(UTC).year}-" in (tmp_path / "now/report.html").read_text()


def test_column_that_the_model_does_not_have_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="slice 'town': is not a column of the model; expected one of 'x', 'age', 'city'; dkan predict --column",
    ):
        evaluate(folder / "run", folder / "prepared", tmp_path / "eval", slices=["town"])
    assert not (tmp_path / "eval").exists()
