"""Weights of rows from preparation to the metrics: validation, early stopping, test, comparison, predictions."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from dkan_core import ConfigError, PrepareConfig, TrainConfig, evaluate, prepare, train
from dkan_core.model.saved_model import SavedModel

SMALL = TrainConfig(epochs=3, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02, seed=1)

# Of the table of worst errors.
REASONS_OF_ROW = r'<th scope="row">([\d,]+)</th><td>[^<]*</td>\n<td class="reasons">'


def test_weights_reach_every_metric(source: Path, tmp_path: Path) -> None:
    """Of two halves of the rows one counts for nothing, and there the labels are wrong."""
    table = pq.read_table(source)
    random = np.random.default_rng(0)
    weight = np.where(random.random(len(table)) < 0.5, 0.0, random.choice([0.5, 2.0], len(table)))
    label = table["label"].to_numpy()
    wrong = np.where(weight > 0, label, 1 - label).astype(np.int8)
    table = table.set_column(table.schema.get_field_index("label"), "label", pa.array(wrong))
    pq.write_table(table.append_column("w", pa.array(weight)), tmp_path / "rows.parquet")
    config = PrepareConfig(label=("label",), weight="w")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", config)
    result = train(tmp_path / "data", tmp_path / "run", SMALL)
    saved = SavedModel(tmp_path / "run").metrics
    # Where wrong rows counted, no model could be better than half right.
    assert result.history[-1]["average_precision"] > 0.9 > saved["average_precision_unweighted"]
    assert saved["average_precision"] == pytest.approx(result.average_precision, abs=1e-6)
    # An earlier model with another encoding sees the same weights.
    prepare(source, tmp_path / "other", PrepareConfig(label=("label",), numeric_dtype="float32", seed=3))
    train(tmp_path / "other", tmp_path / "previous", SMALL)
    metrics = evaluate(
        tmp_path / "run",
        tmp_path / "data",
        tmp_path / "eval",
        previous=tmp_path / "previous",
        save_predictions=True,
        explain=False,
        slices=["site", "mean_radius"],
    ).metrics
    rows = pq.read_table(tmp_path / "eval" / "predictions.parquet")
    assert rows.column_names == ["label", "label_probability", "weight"]
    labels, scores, weights = (rows[name].to_numpy() for name in rows.column_names)
    assert metrics["average_precision"] == pytest.approx(average_precision_score(labels, scores, sample_weight=weights))
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert metrics["average_precision_unweighted"] == pytest.approx(average_precision_score(labels, scores))
    assert metrics["labels"]["label"]["rows"] == np.count_nonzero(weights) < metrics["rows"] == len(rows)
    counted = np.count_nonzero(weights)
    assert [sum(level["rows"] for level in levels) for levels in metrics["slices"]["columns"].values()] == [
        counted,
        counted,
    ]
    assert metrics["previous_average_precision"] > 0.9
    assert json.loads((tmp_path / "eval" / "metrics.json").read_text())["average_precision"] > 0.9


def test_rows_of_weight_0_are_in_no_curve_table_or_worst_error(source: Path, tmp_path: Path) -> None:
    table = pq.read_table(source)
    label = table["label"].to_numpy()
    weight = np.where(np.arange(len(table)) % 3 == 0, 0.0, 2.0)
    wrong = np.where(weight > 0, label, 1 - label).astype(np.int8)
    table = table.set_column(table.schema.get_field_index("label"), "label", pa.array(wrong))
    pq.write_table(table.append_column("w", pa.array(weight)), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",), weight="w"))
    train(tmp_path / "data", tmp_path / "run", SMALL)
    found = evaluate(tmp_path / "run", tmp_path / "data", tmp_path / "eval", split="train", explain=False)
    assert found.weights is not None
    counted = found.weights > 0
    labels, scores = found.labels[counted, 0], found.probabilities[counted, 0]
    alerts = scores >= found.thresholds["label"]
    assert found.confusion_matrix() == confusion_matrix(labels, alerts).tolist()
    false_rate, true_rate, thresholds = found.roc_curve()
    index = len(thresholds) // 2
    for value, rate in ((0, false_rate), (1, true_rate)):
        assert rate[index] == np.mean(scores[labels == value] >= thresholds[index])
    report = (tmp_path / "eval" / "report.html").read_text()
    shown = [int(number.replace(",", "")) for number in re.findall(REASONS_OF_ROW, report)]
    assert shown and counted[shown].all()


def test_predictions_whose_columns_would_have_one_name_are_refused(tmp_path: Path, caplog: Any) -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(2, size=300) for name in ("a", "a_probability", "weight")}
    pq.write_table(pa.table({**columns, "x": rng.normal(size=300), "w": rng.random(300)}), tmp_path / "rows.parquet")
    for name, labels in (("both", ("a", "a_probability")), ("weight", ("weight",))):
        others = tuple(each for each in columns if each not in labels)
        config = PrepareConfig(label=labels, drop=others, weight="w")
        prepare(tmp_path / "rows.parquet", tmp_path / name, config)
        train(tmp_path / name, tmp_path / f"run-{name}", SMALL)
    with pytest.raises(ConfigError, match="label 'a_probability' has the name of the probabilities of label 'a'"):
        evaluate(tmp_path / "run-both", tmp_path / "both", tmp_path / "eval", save_predictions=True)
    assert not (tmp_path / "eval").exists()
    evaluate(tmp_path / "run-weight", tmp_path / "weight", tmp_path / "eval", save_predictions=True, explain=False)
    assert "the rows' weights are left out" in caplog.text
