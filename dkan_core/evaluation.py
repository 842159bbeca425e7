"""``evaluate``: metrics, report and optional predictions of a model on a prepared split."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core import metrics as metric
from dkan_core.comparison import Comparison, compare, comparison_section
from dkan_core.data.loader import open_split
from dkan_core.data.manifest import PreparedData, open_prepared
from dkan_core.explanation.explain import QUICK_ROWS, learned_section, read_rows
from dkan_core.model.saved_model import SavedModel
from dkan_core.prediction import best_device, check_match, probability_column, score_split, to_probability
from dkan_core.report import render_report
from dkan_core.storage import local_copy, read_if_there, staged_folder, write_atomic, write_json

METRICS, REPORT, PREDICTIONS, HISTORY = "metrics.json", "report.html", "predictions.parquet", "history.jsonl"
OUTPUTS = (REPORT, PREDICTIONS, METRICS)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's scores on a split.

    Shape:
        - labels: ``(N, L)`` uint8, 255 for not measured; probabilities: ``(N, L)``
    """

    metrics: dict[str, Any]
    """What ``metrics.json`` holds."""

    labels: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float32]

    thresholds: dict[str, float]
    """Operating threshold of each label: the one with the best F1 on validation."""

    def scalars(self) -> dict[str, float]:
        """Return the top-level metrics that are defined, as plain floats."""
        return {
            name: float(value)
            for name, value in self.metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    def roc_curve(self) -> tuple[list[float], list[float], list[float]]:
        """Return false positive rate, true positive rate and thresholds, at most 200 points; labels are pooled."""
        return metric.roc_points(self.labels.ravel(), self.probabilities.ravel())

    def confusion_matrix(self) -> list[list[int]]:
        """Return [[TN, FP], [FN, TP]] at the operating thresholds, summed over labels."""
        matrices = [
            metric.confusion_matrix(self.labels[:, index], self.probabilities[:, index], threshold)
            for index, threshold in enumerate(self.thresholds.values())
        ]
        summed: list[list[int]] = np.sum(matrices, axis=0).tolist()
        return summed


def evaluate(
    model: str | Path,
    prepared: str | Path,
    out: str | Path,
    *,
    split: str = "test",
    save_predictions: bool = False,
    explain: bool = True,
    previous: str | Path | None = None,
) -> Evaluation:
    """Score a prepared split and write ``metrics.json`` and ``report.html``.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        prepared: Folder or URI that ``prepare`` wrote, with the encoding the model was trained with.
        out: Folder or URI for the results; those of an earlier evaluation are replaced.
        split: "train", "valid" or "test".
        save_predictions: Also write ``predictions.parquet``: label and probability of each row, in stored order.
        explain: Show what the model learned in the report; takes a few seconds.
        previous: An earlier model, folder or URI, to be scored on the same rows; none there yet is fine.

    Raises:
        DataError: The model or the data cannot be read, or do not belong together.
        OutputError: ``out`` cannot take the result.
    """
    with staged_folder(out, names=OUTPUTS, overwrite=True) as folder:
        with local_copy(model) as model_folder:
            saved = SavedModel(model_folder)
        with open_prepared(prepared) as (data, manifest):
            history = _read_history(model)
            check_match(saved, manifest, prepared)
            device = best_device()
            with open_split(data, manifest, split) as reader:
                scored = score_split(saved.module.to(device), reader, device)
            labels_NL, probabilities_NL = scored.labels_NL, to_probability(scored.log_odds_NL)
            learned = ""
            if explain and len(labels_NL) > 1:
                learned = learned_section(saved, manifest, read_rows(data, manifest, split, QUICK_ROWS), split)
            comparison = _compare(previous, data, manifest, split)
        metrics = metric.compute_metrics(labels_NL, probabilities_NL, manifest.labels)
        metrics["split"] = split
        if comparison is not None:
            metrics["previous_average_precision"] = comparison.metrics.get("average_precision")
            metrics["comparable"] = bool(comparison.metrics) or not comparison.is_there
        report = render_report(
            title=f"{', '.join(manifest.labels[:3])}: {split} split",
            labels=labels_NL,
            probabilities=probabilities_NL,
            names=manifest.labels,
            metrics=metrics,
            thresholds=saved.thresholds,
            history=history,
            data_summary=manifest.summary(),
            model_summary=_model_summary(saved),
            compared=comparison_section(metrics, comparison) if comparison is not None else "",
            learned=learned,
        )
        write_atomic(folder / REPORT, report)
        if save_predictions:
            pq.write_table(_prediction_table(labels_NL, probabilities_NL, manifest.labels), folder / PREDICTIONS)
        write_json(folder / METRICS, metrics)
    logger.info("%s average precision %s; report in %s/%s", split, metrics["average_precision"], out, REPORT)
    return Evaluation(metrics=metrics, labels=labels_NL, probabilities=probabilities_NL, thresholds=saved.thresholds)


def _compare(previous: str | Path | None, data: Path, manifest: PreparedData, split: str) -> Comparison | None:
    if not previous:
        return None
    with open_split(data, manifest, split) as reader:
        return compare(previous, manifest, reader)


def _read_history(model: str | Path) -> list[dict[str, Any]]:
    """Return the history of the run that a model lies in, or of the run folder itself; empty where there is none."""
    run = str(model).rstrip("/")
    text = read_if_there(f"{run}/{HISTORY}") or read_if_there(f"{run.rpartition('/')[0] or '.'}/{HISTORY}") or ""
    return [json.loads(line) for line in text.splitlines()]


def _model_summary(saved: SavedModel) -> dict[str, Any]:
    coded = saved.preprocessor.coded
    crosses = [group for group in saved.config.indicators if len(group) > 1]
    return {
        "model": saved.config.model,
        "members": saved.config.members,
        "layers of each": [saved.module.encoder.width, *saved.config.hidden, len(saved.config.labels)],
        "binary inputs": len(saved.config.binary),
        "crosses": [" x ".join(coded[index].name for index in group) for group in crosses] or "none",
        "parameters": saved.parameters(),
        "centers": f"{saved.config.num_centers} on [{saved.config.grid_min:g}, {saved.config.grid_max:g}]",
        "input norm": saved.config.input_norm,
        "dropout": saved.config.dropout,
        "best at epoch": saved.metrics["epoch"],
        "validation average precision": saved.metrics["average_precision"],
        "operating thresholds (best F1 on validation)": saved.thresholds,
    }


def _prediction_table(
    labels_NL: npt.NDArray[np.uint8], probabilities_NL: npt.NDArray[np.float32], names: list[str]
) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for index, name in enumerate(names):
        measured = labels_NL[:, index] != metric.NOT_MEASURED
        columns[name] = pa.array(labels_NL[:, index], mask=~measured)
        columns[probability_column(name)] = pa.array(probabilities_NL[:, index])
    return pa.table(columns)
