"""A column that alone predicts the label is named: of numbers, of categories, and where its relation is no line."""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, evaluate, prepare, train
from dkan_core.data.encoding.preprocessor import NumericFeature, Preprocessor
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.evaluation.leakage import leakage_warnings

ROWS = 6000
TRUTH = np.random.default_rng(1).random(ROWS) < 0.3
NOISE = np.random.default_rng(2).normal(size=ROWS)
LEAKS = {
    "number": pa.array(np.where(TRUTH, 2.0, -2.0) + NOISE / 4),
    "category": pa.array(np.where(TRUTH, "refunded", "kept").tolist()),
    "both ends": pa.array(np.where(TRUTH, 3 * np.sign(NOISE), 0) + NOISE / 4),
    "ID": pa.array([[number % 50, *([99] if late else [])] for number, late in enumerate(TRUTH)]),
    "missing": pa.array(np.where(TRUTH, 1.0, np.nan), from_pandas=True),
}


def table(**columns: pa.Array) -> pa.Table:
    return pa.table(
        {"x": NOISE, "other": np.random.default_rng(3).normal(size=ROWS), "y": TRUTH.astype(np.int8), **columns}
    )


def found(folder: Path, rows: pa.Table, area: float) -> list[str]:
    pq.write_table(rows, folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "prepared", PrepareConfig(label=("y",)), overwrite=True)
    manifest = read_manifest(folder / "prepared")
    with open_split(folder / "prepared", manifest, "train") as reader:
        (sample,) = list(all_batches(reader, ROWS))
    metrics = {"labels": {"y": {"roc_auc": area, "average_precision": 0.99}}}
    return leakage_warnings(manifest.preprocessor, sample, metrics)


@pytest.mark.parametrize("kind", LEAKS)
def test_column_that_separates_the_label_is_named(tmp_path: Path, kind: str) -> None:
    (text,) = found(tmp_path, table(late=LEAKS[kind]), area=0.999)
    assert "column 'late' alone predicts it" in text and "known before the event?" in text


def test_no_column_is_named_where_several_are_needed_or_the_model_is_no_better_than_honest(tmp_path: Path) -> None:
    together = pa.array(np.where(TRUTH, 1.5, 0) + NOISE)
    assert found(tmp_path, table(helpful=together), area=0.999) == []
    assert found(tmp_path, table(late=LEAKS["number"]), area=0.9) == []


def test_nothing_is_said_of_a_label_with_few_measured_rows_or_of_no_columns() -> None:
    metrics = {"labels": {"y": {"roc_auc": 0.999, "average_precision": 0.99}}}
    encoding = Preprocessor(
        numeric=[NumericFeature(name="x", knots=[0.0, 1.0], scores=[-1.0, 1.0])], coded=[], numeric_dtype="uint8"
    )
    numeric = np.arange(40, dtype=np.uint8)[:, None]
    for measured in (0, 1, 2):
        labels = np.full((40, 1), NOT_MEASURED, np.uint8)
        labels[:measured, 0] = range(measured)
        assert leakage_warnings(encoding, {"numeric": numeric, "labels": labels}, metrics) == []
    nothing = Preprocessor(numeric=[], coded=[], numeric_dtype="uint8")
    assert leakage_warnings(nothing, {"labels": np.array([[0], [1]] * 20, np.uint8)}, metrics) == []


def test_evaluation_says_so_in_log_metrics_and_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = table(late=LEAKS["category"], month=pa.array(np.arange(ROWS) % 12))
    pq.write_table(rows, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "prepared", PrepareConfig(label=("y",)))
    small = TrainConfig(epochs=4, hidden=(4,), batch_size=64, learning_rate=0.02, device="cpu", strategy="single")
    model = train(tmp_path / "prepared", tmp_path / "run", small).model
    caplog.clear()
    metrics = evaluate(model, tmp_path / "prepared", tmp_path / "eval", explain=False).metrics
    random, leak = metrics["warnings"]
    assert "'month' looks like a time" in random and "'late' alone" in leak
    logged = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert metrics["warnings"] == logged
    page = (tmp_path / "eval/report.html").read_text()
    assert page.count('class="warning"') == 2
    assert "one label: y. Split at random, row by row (70/10/20)." in page
    few = pa.concat_tables([rows.filter(pa.array(~TRUTH))] * 5 + [rows.filter(pa.array(TRUTH)).slice(0, 20)])
    pq.write_table(few, tmp_path / "few.parquet")
    caplog.set_level("INFO", "dkan_core")
    few_found = evaluate(model, tmp_path / "few.parquet", f"{tmp_path}/few/", explain=False, worst_errors=0)
    assert caplog.messages[-1].endswith(f"report in {tmp_path}/few/report.html")
    assert any("'late' alone" in text for text in few_found.metrics["warnings"]), "of one positive in a thousand rows"
