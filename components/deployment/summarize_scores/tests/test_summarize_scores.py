"""The component logs finite metrics, and leaves a page and its numbers as JSON."""

import json
import math
from pathlib import Path

import pytest
from kfp import dsl

from components.deployment.summarize_scores import summarize_scores
from dkan_core import DataError, TrainResult, plan_scoring, score_part


def summarized(folder: Path, out: Path) -> tuple[dsl.Metrics, dsl.HTML, dsl.Artifact, tuple[float, float]]:
    metrics, report, drift = (
        kind(uri=str(folder / name))
        for name, kind in (("metrics", dsl.Metrics), ("report", dsl.HTML), ("drift", dsl.Artifact))
    )
    return metrics, report, drift, summarize_scores.python_func(metrics, report, drift, str(out))


@pytest.mark.parametrize("labels", [("label",), ()])
def test_metrics_page_and_table(trained: TrainResult, source: Path, tmp_path: Path, labels: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    plan_scoring(trained.model, source, out, labels=labels)
    score_part(out, 0)
    metrics, report, drift, (average_precision, max_psi) = summarized(tmp_path, out)
    assert all(math.isfinite(value) for value in metrics.metadata.values())
    assert ("roc_auc" in metrics.metadata) == bool(labels) == (average_precision > 0)
    assert metrics.metadata["max_psi"] == max_psi == json.loads(Path(drift.path).read_text())["drift"]["max_psi"]
    assert "mean_radius" in Path(report.path).read_text() and report.uri.endswith("report.html")


def test_scores_that_are_not_there_yet_are_an_error(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    plan_scoring(trained.model, source, tmp_path / "out")
    with pytest.raises(DataError, match="part 0 of 1 not scored yet"):
        summarized(tmp_path, tmp_path / "out")
