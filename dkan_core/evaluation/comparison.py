"""A model and an earlier one on the same rows.

The earlier model was usually trained on other data with another encoding, so the rows are encoded for each model
separately (see ``evaluation.labelled_rows``).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from dkan_core.data.format.origin import Origin, overlap, trained_on
from dkan_core.data.source.positive import check_positive
from dkan_core.errors import DataError, redact
from dkan_core.evaluation.intervals import difference_to
from dkan_core.evaluation.labelled_rows import EvaluationData, score_rows
from dkan_core.evaluation.metrics import METRIC_NAMES, compute_metrics
from dkan_core.evaluation.result import Evaluation
from dkan_core.model.model_folder import find_model
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.report.templating import digits_of, render_html

# Prevalence is left out, as it does not depend on the model.
COMPARED = [key for key in METRIC_NAMES if key != "prevalence"]

# Where ``metrics.json`` has the intervals of the differences.
DIFFERENCE = "difference_to_previous_interval"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Metrics of an earlier model on the same rows."""

    model: str
    """Its path or URI, without credentials."""

    is_there: bool = True
    """Whether the earlier model exists."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """From ``compute_metrics``; empty where it could not be scored."""

    why_not: str = ""
    """Why it could not be scored."""

    overlap: str = ""
    """Why its metrics may be too good: it may have been trained on some of the rows."""

    probabilities: npt.NDArray[np.float32] | None = None
    """Of the rows, ``(N, L)``; None where it could not be scored."""

    saved: SavedModel | None = None
    """The model; None where it could not be scored."""


def compare(previous: str | Path, data: EvaluationData) -> Comparison:
    """Score rows with an earlier model.

    A model that does not exist yet, or has other labels or columns, or counts other values of a label as 1, is reported
    in the result and is no error.
    """
    given = str(previous).rstrip("/")
    # Without credentials, as metrics and the report show the path or URI.
    uri = redact(given)
    try:
        if find_model(given) is None:
            logger.info("%s: there is no model yet to compare with", uri)
            return Comparison(model=uri, is_there=False, why_not="there is no model yet")
        saved = load_model(given)
        known = list(saved.config.labels)
        if sorted(known) != sorted(data.labels):
            return _not_compared(uri, f"it was trained for the labels {', '.join(known)}")
        check_positive(saved.config.positive, uri, data.positives, "the model")
        labels_NL, probabilities_NL, weight_N = score_rows(saved, data, data.batches(saved.preprocessor))
        probabilities_NL = np.take(probabilities_NL, [known.index(name) for name in data.labels], axis=1)
    # An unreadable earlier model must not lose the evaluation of the new one.
    except DataError as error:
        return _not_compared(uri, str(error))
    seen = known_rows(saved, data)
    if seen:
        advice = ": prepare with --split-by content, --group or --split-column" if data.split else ""
        logger.warning("%s: %s; its metrics may be too good%s", uri, seen, advice)
    metrics = compute_metrics(labels_NL, probabilities_NL, data.labels, weight_N)
    return Comparison(model=uri, metrics=metrics, overlap=seen, probabilities=probabilities_NL, saved=saved)


def add_comparison(evaluation: Evaluation, comparison: Comparison) -> None:
    """Add to the metrics of a model how it compares with the earlier one on the same rows."""
    metrics, ours_NL = evaluation.metrics, evaluation.probabilities
    metrics["previous_average_precision"] = comparison.metrics.get("average_precision")
    theirs_NL = comparison.probabilities
    if theirs_NL is not None:
        labels_NL, weight_N = evaluation.labels, evaluation.weights
        found = difference_to(metrics, comparison.metrics, labels_NL, ours_NL, theirs_NL, weight_N)
        metrics |= {DIFFERENCE: found} if found else {}
    metrics["previous_model_found"] = int(comparison.is_there)
    if comparison.why_not:
        metrics["not_compared"] = f"{comparison.model}: {comparison.why_not}"
    # So a gate that requires "no worse than before" can pass a first model, but not one whose comparison failed.
    metrics["comparable"] = bool(comparison.metrics) or not comparison.is_there


def known_rows(saved: SavedModel, data: EvaluationData) -> str:
    """Return why a model may have been trained on some of the rows; empty where it was not."""
    # Messages name prepared data by their split, raw data by their path.
    named = {} if data.split else {"name": data.name.rstrip("/").rpartition("/")[2]}
    found = (overlap(Origin.model_validate(each), data.origin, **named) for each in trained_on(saved.metrics))
    return next(filter(None, found), "")


def _not_compared(uri: str, why_not: str) -> Comparison:
    logger.warning("not compared with %s: %s", uri, why_not)
    return Comparison(model=uri, why_not=why_not)


def comparison_section(metrics: Mapping[str, Any], comparison: Comparison) -> Markup:
    """Return the section of a report that holds a model's metrics against those of the earlier one."""
    theirs, intervals = comparison.metrics, metrics.get(DIFFERENCE, {})
    rows = [(METRIC_NAMES[key], metrics[key], theirs[key], intervals.get(key)) for key in COMPARED] if theirs else []
    return render_html(
        "comparison",
        model=comparison.model,
        why_not=comparison.why_not,
        overlap=comparison.overlap,
        rows=rows,
        digits=digits_of(metrics["rows"]),
    )
