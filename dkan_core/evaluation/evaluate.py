"""``evaluate``: metrics, report and optional predictions of a model on a prepared split or on raw Parquet."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.source.files import source_paths
from dkan_core.errors import ConfigError
from dkan_core.evaluation import column_summary, leakage
from dkan_core.evaluation.comparison import DIFFERENCE, Comparison, add_comparison, compare, known_rows
from dkan_core.evaluation.intervals import add_intervals
from dkan_core.evaluation.labelled_rows import EvaluationData, RowCollector, open_evaluation_data, score_rows
from dkan_core.evaluation.metrics import compute_metrics
from dkan_core.evaluation.page import provenance_of, read_run_history, render_page
from dkan_core.evaluation.result import Evaluation
from dkan_core.evaluation.slices import TOP_COLUMNS, find_columns, slice_metrics
from dkan_core.evaluation.worst_errors import ERRORS, find_worst_errors
from dkan_core.explanation.columns import Column
from dkan_core.explanation.comparison import compare_explanations
from dkan_core.explanation.explain import QUICK, QUICK_ROWS, quick_explanation
from dkan_core.explanation.explanation import Explanation
from dkan_core.model.model_folder import naming_swapped
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.scoring.output_columns import probability_column
from dkan_core.scoring.prepared import known_split
from dkan_core.tracking.mlflow.evaluation import log_evaluation
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.file_names import METRICS
from dkan_core.utils.messages import few_rows
from dkan_core.utils.storage.files import write_atomic, write_json
from dkan_core.utils.storage.outputs import check_file_is_ours
from dkan_core.utils.storage.staging import staged_folder

REPORT, PREDICTIONS = "report.html", "predictions.parquet"
# The metrics are written last: a pipeline's next step waits for them.
OUTPUTS = (REPORT, PREDICTIONS, METRICS)
# Labels to explain at most; each takes a second or more.
EXPLAINED_LABELS = 4
# Name of the weight column of predictions.parquet.
WEIGHT_COLUMN = "weight"

logger = logging.getLogger(__name__)


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
    slices: Sequence[str] = (),
    worst_errors: int = ERRORS,
    overwrite: bool = False,
) -> Evaluation:
    """Score labelled rows and write ``metrics.json`` and ``report.html``.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        data: Folder or URI that ``prepare`` wrote, with the encoding of the model; or raw Parquet (files, folders,
            globs or URIs), every row of which is scored.
        out: Folder or URI for the results.
        split: Of prepared data: "train", "valid" or "test". Default: "test".
        label: Label columns of raw Parquet, in the order of the model's labels if they have other names. Default: the
            names of the model's labels.
        save_predictions: Also write ``predictions.parquet``: label and probability of each row, in stored order.
        explain: Show what the model learned in the report; takes a few seconds.
        previous: An earlier model, as a folder or URI, to score on the same rows; it need not exist yet.
        slices: Columns of the model to report metrics by. Default: with ``explain``, the most important ones.
        worst_errors: Rows of each label to show in the report with the reasons for their score: half of them the
            highest-scored negatives, half the lowest-scored positives. The page then holds rows of data; 0 for none.
        overwrite: Whether an earlier result in ``out`` may be replaced.

    Returns:
        The metrics, with labels, probabilities and weights of the rows.

    Raises:
        ConfigError: A setting is for the other kind of data, or out of range.
        DataError: The model or the data cannot be read, or do not belong together.
        OutputError: ``out`` cannot take the result.
    """
    if worst_errors < 0:
        raise ConfigError(f"worst_errors must be 0 or more, got {worst_errors}")
    sources = source_paths(data)
    columns = [label] if isinstance(label, str) else list(label)
    options = _options(split, columns, previous, slices, explain=explain, worst_errors=worst_errors)
    out = str(out).rstrip("/")  # in a bucket, a//b is another place than a/b
    # Other programs write files of this name, too, which must not be overwritten.
    check_file_is_ours(f"{out}/{METRICS}", beginning=b"{", mark=b'"average_precision"')
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite) as folder:
        with naming_swapped(sources):
            saved = load_model(model)
        if saved.preprocessor.sparse and worst_errors:
            worst_errors = 0
            logger.info("the model reads lists of IDs, so the report has no worst errors")
        # Before the rows are scored, so that errors come early.
        sliced = find_columns(saved, slices)
        history = read_run_history(model)
        with open_evaluation_data(saved, sources, split, columns) as rows:
            if save_predictions:
                _check_prediction_columns(rows.labels)
            evaluation, sample, many = _score(saved, rows)
            comparison = compare(previous, rows) if previous else None
            if comparison is not None:
                add_comparison(evaluation, comparison)
            evaluation.metrics["warnings"] = _warnings(saved, rows, evaluation, many)
            learned = _learned(saved, rows, evaluation, sample, comparison) if explain else None
            sliced = sliced or _important_columns(saved, learned)
            evaluation.metrics.update(_slices(saved, rows, evaluation, sliced))
            errors = find_worst_errors(saved, rows, evaluation.counted_labels, evaluation.probabilities, worst_errors)
            report = render_page(
                saved,
                rows,
                evaluation,
                learned=learned,
                errors=errors,
                columns=column_summary.describe_columns(saved.preprocessor, many),
                comparison=comparison,
                provenance=provenance_of(saved, rows, model, sources, options),
                history=history,
            )
        write_atomic(folder / REPORT, report)
        if save_predictions:
            pq.write_table(_prediction_table(evaluation, rows.labels), folder / PREDICTIONS)
        write_json(folder / METRICS, evaluation.metrics)
    found = learned.to_dict() if learned else None
    log_evaluation(model, evaluation.metrics, saved.metrics.get("step", 0), report, found)
    logger.info("%s average precision %s; report in %s/%s", rows.name, _describe(evaluation.metrics), out, REPORT)
    return replace(evaluation, report=str(report))


def _describe(metrics: Mapping[str, Any]) -> str:
    """Return the average precision in words, beside that of the earlier model if there is one."""
    precision, before = metrics["average_precision"], metrics.get("previous_average_precision")
    if precision is None or before is None:
        return "unknown" if precision is None else f"{precision:.4f}"
    interval = (metrics.get(DIFFERENCE) or {}).get("average_precision")
    certainty = f", 95%: {interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""
    return f"{precision:.4f}, of the earlier model {before:.4f} ({precision - before:+.4f}{certainty})"


def _options(
    split: str | None,
    labels: Sequence[str],
    previous: str | Path | None,
    slices: Sequence[str],
    *,
    explain: bool,
    worst_errors: int,
) -> list[str]:
    """Return the options of the command line that decide what a report shows."""
    given = [("--split", split), ("--previous", previous and str(previous))]
    given += [("--label", name) for name in labels] + [("--slice", name) for name in slices]
    found = [word for name, value in given if value for word in (name, value)]
    found += [] if explain else ["--no-explain"]
    return found + ([] if worst_errors == ERRORS else ["--worst-errors", str(worst_errors)])


def _score(saved: SavedModel, data: EvaluationData) -> tuple[Evaluation, Arrays, Arrays]:
    """Score all rows; return metrics, a few encoded rows for the explanation, and more of them to look at columns."""
    collector = RowCollector(data.sample(QUICK_ROWS))
    larger = RowCollector(data.sample(column_summary.rows_to_look_at(saved.preprocessor)))
    batches = larger.watch(collector.watch(data.batches(saved.preprocessor)))
    labels_NL, probabilities_NL, weight_N = score_rows(saved, data, batches)
    metrics = compute_metrics(labels_NL, probabilities_NL, data.labels, weight_N)
    metrics |= {"split": data.name, "is_raw": not data.split, "model_fingerprint": saved.files.fingerprint()}
    add_intervals(metrics, labels_NL, probabilities_NL, weight_N)
    for label in data.labels:
        if not data.split and (held := data.positive(label)):
            logger.info("label %r: %s", label, held)
    evaluation = Evaluation(
        metrics=metrics,
        labels=labels_NL,
        probabilities=probabilities_NL,
        weights=weight_N,
        thresholds=saved.thresholds,
    )
    return evaluation, _in_random_order(collector.rows()), larger.rows()


def _in_random_order(sample: Arrays) -> Arrays:
    """Return rows so that the first ones are a sample, too: in stored order, they are those that were there first."""
    # A fixed seed: the same rows give the same report.
    order_N = np.random.default_rng(0).permutation(len(sample.get("labels", ())))
    return {name: array[order_N] for name, array in sample.items()}


def _warnings(saved: SavedModel, data: EvaluationData, evaluation: Evaluation, sample: Arrays) -> list[str]:
    """Return, and log, the reasons why the metrics may not hold for new rows."""
    found = [*data.warnings, *leakage.leakage_warnings(saved.preprocessor, sample, evaluation.metrics)]
    found += _class_warnings(evaluation, data)
    # Not for prepared data, where the caller has chosen the split.
    if not data.split and (known := known_rows(saved, data)):
        found.append(f"the model may have been trained on these rows: {known}")
    if data.split and (known := known_split(saved, data.name)):
        found.append(known)
    for text in found:
        logger.warning("%s", text)
    return found


def _class_warnings(evaluation: Evaluation, data: EvaluationData) -> list[str]:
    """Return warnings of labels with no rows, with rows of only one class, or with few of a class."""
    found, rarer = list[str](), dict[str, int]()
    for label, labels_N in zip(data.labels, evaluation.counted_labels.T, strict=True):
        rows = [int(np.count_nonzero(labels_N == value)) for value in (0, 1)]
        if not any(rows):
            found.append(f"label {label!r} is measured in no row, so it has no metrics")
        elif not all(rows):
            # With the other values of its column, which may be what is wrong.
            values = f": {held}" if (held := data.positive(label)) else ""
            text = f"label {label!r} is {int(rows[1] > 0)} in every measured row"
            found.append(f"{text}, so it has no average precision or ROC AUC{values}")
        else:
            rarer[label] = min(rows)
    if few := few_rows(rarer):
        # Even the metrics' intervals then say little.
        found.append(f"few rows of the rarer class ({few}): other rows may give quite different metrics")
    return found


def _important_columns(saved: SavedModel, learned: Explanation | None) -> list[Column]:
    """Return the columns to report metrics by where none are named: those that matter most to the first label."""
    if learned is None:
        return []
    ranked = next(iter(learned.labels.values())).importance
    return find_columns(saved, [column.name for column in ranked if column.kind != "ids"][:TOP_COLUMNS])


def _slices(
    saved: SavedModel, data: EvaluationData, evaluation: Evaluation, columns: Sequence[Column]
) -> dict[str, Any]:
    """Return the metrics of slices as ``metrics.json`` has them, of the label with the most positives."""
    index = int(np.argmax(np.count_nonzero(evaluation.counted_labels == 1, axis=0)))
    scores_N, labels_N = evaluation.probabilities[:, index], evaluation.labels[:, index]
    found = slice_metrics(saved, data, columns, labels_N, scores_N, evaluation.weights)
    return {"slices": {"label": data.labels[index], "columns": found}} if found else {}


def _learned(
    saved: SavedModel,
    data: EvaluationData,
    evaluation: Evaluation,
    sample: Arrays,
    comparison: Comparison | None,
) -> Explanation | None:
    """Return what the model learned about the labels with the most positives; None without rows to read it from.

    An earlier model that was scored on the same rows is shown beside it.
    """
    if len(sample.get("labels", ())) < 2:
        return None
    counts = dict(zip(data.labels, np.count_nonzero(evaluation.counted_labels == 1, axis=0).tolist(), strict=True))
    chosen = sorted(data.labels, key=lambda name: -counts[name])[:EXPLAINED_LABELS]
    found = quick_explanation(saved, sample, chosen, data.name)
    if comparison is None or comparison.saved is None:
        return found
    if saved.preprocessor.sparse or comparison.saved.preprocessor.sparse:
        return found
    earlier, where = comparison.saved, comparison.model
    return compare_explanations(saved, earlier, found, sample, labels=data.labels, where=where, effort=QUICK)


def _check_prediction_columns(names: Sequence[str]) -> None:
    """Raise ConfigError where a file of predictions would have two columns of one name."""
    for name in names:
        if (column := probability_column(name)) in names:
            raise ConfigError(
                f"save_predictions: label {column!r} has the name of the probabilities of label {name!r}; leave it out"
            )


def _prediction_table(evaluation: Evaluation, names: list[str]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for index, name in enumerate(names):
        labels_N = evaluation.labels[:, index]
        columns[name] = pa.array(labels_N, mask=labels_N == NOT_MEASURED)
        columns[probability_column(name)] = pa.array(evaluation.probabilities[:, index])
    if evaluation.weights is not None and WEIGHT_COLUMN in columns:
        logger.warning("predictions: a label is called %r, and the rows' weights are left out", WEIGHT_COLUMN)
    elif evaluation.weights is not None:
        columns[WEIGHT_COLUMN] = pa.array(evaluation.weights)
    return pa.table(columns)
