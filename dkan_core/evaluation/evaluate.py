"""``evaluate``: metrics, report and optional predictions of a model on a prepared split or on raw Parquet."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict

from dkan_core.data.format.shard_writer import Arrays
from dkan_core.errors import DataError
from dkan_core.evaluation import curves
from dkan_core.evaluation import metrics as metric
from dkan_core.evaluation.comparison import Comparison, compare, comparison_section
from dkan_core.evaluation.labelled_rows import EvaluationData, RowCollector, open_evaluation_data, score_rows
from dkan_core.evaluation.prediction import probability_column
from dkan_core.explanation.explain import QUICK_ROWS, learned_section, quick_explanation
from dkan_core.explanation.learned import Explanation
from dkan_core.model.saved_model import SavedModel, Share
from dkan_core.report.evaluation import render_report
from dkan_core.report.templating import render_markdown
from dkan_core.tracking.mlflow.evaluation import log_evaluation
from dkan_core.training.history import HISTORY, read_history
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import read_if_there, write_atomic, write_json
from dkan_core.utils.storage.outputs import check_file_is_ours
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.staging import staged_folder

METRICS, REPORT, PREDICTIONS = "metrics.json", "report.html", "predictions.parquet"
# The metrics last: a pipeline's next step waits for them.
OUTPUTS = (REPORT, PREDICTIONS, METRICS)
# Of predictions.parquet.
WEIGHT_COLUMN = "weight"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's scores on labelled rows.

    Shape:
        - labels: ``(N, L)`` uint8, 255 for not measured; probabilities: ``(N, L)``
    """

    metrics: dict[str, Any]
    """What ``metrics.json`` holds."""

    labels: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float32]

    weights: npt.NDArray[np.float32] | None = None
    """Of the rows, ``(N,)``, which the metrics have; None where every row counts alike."""

    thresholds: dict[str, float]
    """Operating threshold of each label: the one with the best F1 on validation."""

    def scalars(self) -> dict[str, float]:
        """Return the top-level metrics that are defined, as plain floats."""
        return {
            name: float(value)
            for name, value in self.metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    def summary(self) -> str:
        """Return the metrics as Markdown, for where no HTML is shown."""
        return render_markdown(
            "evaluation_summary",
            split=self.metrics["split"],
            scalars=self.scalars(),
            thresholds=self.thresholds,
            labels=self.metrics["labels"],
        )

    def roc_curve(self) -> tuple[list[float], list[float], list[float]]:
        """Return false positive rate, true positive rate and thresholds, at most 200 points; labels are pooled."""
        return curves.roc_points(self.labels.ravel(), self.probabilities.ravel())

    def confusion_matrix(self) -> list[list[int]]:
        """Return [[TN, FP], [FN, TP]] at the operating thresholds, summed over labels."""
        matrices = [
            curves.confusion_matrix(self.labels[:, index], self.probabilities[:, index], threshold)
            for index, threshold in enumerate(self.thresholds.values())
        ]
        summed: list[list[int]] = np.sum(matrices, axis=0).tolist()
        return summed


def evaluate(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    split: str | None = None,
    label: str | Sequence[str] = (),
    save_predictions: bool = False,
    explain: bool = True,
    previous: str | Path | None = None,
) -> Evaluation:
    """Score labelled rows and write ``metrics.json`` and ``report.html``.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        data: Folder or URI that ``prepare`` wrote, with the encoding of the model; or raw Parquet (files, folders,
            globs or URIs), every row of which is scored.
        out: Folder or URI for the results; those of an earlier evaluation are replaced.
        split: Of prepared data: "train", "valid" or "test". Default: "test".
        label: Columns of raw Parquet that hold the labels, in the order of the model's. Default: called as those.
        save_predictions: Also write ``predictions.parquet``: label and probability of each row, in stored order.
        explain: Show what the model learned in the report; takes a few seconds.
        previous: An earlier model, folder or URI, to be scored on the same rows; none there yet is fine.

    Raises:
        ConfigError: A setting is for the other kind of data.
        DataError: The model or the data cannot be read, or do not belong together.
        OutputError: ``out`` cannot take the result.
    """
    places = [str(place) for place in ([data] if isinstance(data, (str, Path)) else data)]
    columns = [label] if isinstance(label, str) else list(label)
    # Other programs write files of this name, too.
    check_file_is_ours(f"{out}/{METRICS}", beginning=b"{", mark=b'"average_precision"')
    with staged_folder(out, names=OUTPUTS, overwrite=True) as folder:
        with local_copy(model) as model_folder:
            saved = SavedModel(model_folder)
        # Before the rows are scored: what is wrong with it is said at once.
        history = _read_history(model)
        with open_evaluation_data(saved, places, split, columns) as rows:
            evaluation, sample = _score(saved, rows, QUICK_ROWS if explain else 0)
            comparison = compare(previous, rows) if previous else None
            if comparison is not None:
                evaluation.metrics["previous_average_precision"] = comparison.metrics.get("average_precision")
                # A gate that asks for no worse than before lets a first model pass, but not one that could not be
                # compared.
                evaluation.metrics["comparable"] = bool(comparison.metrics) or not comparison.is_there
            learned = _learned(saved, rows, evaluation, sample)
            report = _report(saved, rows, evaluation, learned, comparison, history)
        write_atomic(folder / REPORT, report)
        if save_predictions:
            table = _prediction_table(evaluation, rows.labels)
            pq.write_table(table, folder / PREDICTIONS)
        write_json(folder / METRICS, evaluation.metrics)
    found = learned.to_dict() if learned is not None else None
    log_evaluation(model, evaluation.metrics, saved.metrics.get("step", 0), report, found)
    precision = evaluation.metrics["average_precision"]
    shown = "unknown" if precision is None else f"{precision:.4f}"
    logger.info("%s average precision %s; report in %s/%s", rows.name, shown, out, REPORT)
    return evaluation


class _EvaluationMetrics(Schema):
    """What is read of ``metrics.json``; there is more."""

    model_config = ConfigDict(extra="allow")

    average_precision: Share | None


def read_metrics(where: str | Path) -> dict[str, Any]:
    """Return the metrics that an evaluation has written.

    Args:
        where: The file, local or remote.

    Raises:
        DataError: It cannot be read, or is not a file of metrics.
    """
    text = read_if_there(str(where))
    if text is None:
        raise DataError(f"{where}: no such file; expected {METRICS} that `dkan evaluate` wrote")
    return read_json(_EvaluationMetrics, text, str(where)).model_dump()


def _score(saved: SavedModel, data: EvaluationData, kept: int) -> tuple[Evaluation, Arrays]:
    """Score all rows; return the metrics, and some encoded rows for a look at what the model learned."""
    collector = RowCollector(data.sample(kept))
    batches = collector.watch(data.batches(saved.preprocessor))
    labels_NL, probabilities_NL, weight_N = score_rows(saved, data, batches)
    metrics = {**metric.compute_metrics(labels_NL, probabilities_NL, data.labels, weight_N), "split": data.name}
    evaluation = Evaluation(
        metrics=metrics,
        labels=labels_NL,
        probabilities=probabilities_NL,
        weights=weight_N,
        thresholds=saved.thresholds,
    )
    return evaluation, collector.rows()


def _learned(saved: SavedModel, data: EvaluationData, evaluation: Evaluation, sample: Arrays) -> Explanation | None:
    """Return what the model learned, where there are rows to read it from."""
    if len(sample.get("labels", ())) < 2:
        return None
    counts = np.count_nonzero(evaluation.labels == 1, axis=0).tolist()
    return quick_explanation(saved, dict(zip(data.labels, counts, strict=True)), sample, data.name)


def _report(
    saved: SavedModel,
    data: EvaluationData,
    evaluation: Evaluation,
    learned: Explanation | None,
    comparison: Comparison | None,
    history: list[dict[str, Any]],
) -> str:
    return render_report(
        title=f"{', '.join(data.labels[:3])}: {data.title}",
        labels=evaluation.labels,
        probabilities=evaluation.probabilities,
        names=data.labels,
        metrics=evaluation.metrics,
        thresholds=saved.thresholds,
        history=history,
        data_summary=data.summary(),
        model_summary=_model_summary(saved),
        compared=comparison_section(evaluation.metrics, comparison) if comparison is not None else None,
        learned=learned_section(learned) if learned is not None else None,
    )


def _read_history(model: str | Path) -> list[dict[str, Any]]:
    """Return the history of the run that a model lies in, or of the run folder itself; empty where there is none."""
    run = str(model).rstrip("/")
    # The run's history lies one above its model; a published model has none.
    for folder in (run, run.rpartition("/")[0] or "."):
        text = read_if_there(f"{folder}/{HISTORY}")
        if text:
            return read_history(text, f"{folder}/{HISTORY}")
    return []


def _model_summary(saved: SavedModel) -> dict[str, Any]:
    coded = saved.preprocessor.coded
    crosses = [group for group in saved.config.one_hot_groups if len(group) > 1]
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


def _prediction_table(evaluation: Evaluation, names: list[str]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for index, name in enumerate(names):
        labels_N = evaluation.labels[:, index]
        columns[name] = pa.array(labels_N, mask=labels_N == metric.NOT_MEASURED)
        columns[probability_column(name)] = pa.array(evaluation.probabilities[:, index])
    # A label may be called so itself.
    if evaluation.weights is not None and WEIGHT_COLUMN not in columns:
        columns[WEIGHT_COLUMN] = pa.array(evaluation.weights)
    return pa.table(columns)
