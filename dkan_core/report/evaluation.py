"""The report of an evaluation: one HTML page that needs no network.

It works in the sandboxed frame of the Kubeflow UI and as a local file. Where scripts are blocked, only the threshold
explorer is missing. The same input gives the same bytes.

Shape suffixes: N rows, L labels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from markupsafe import Markup

from dkan_core.evaluation.curves import threshold_counts, threshold_table
from dkan_core.evaluation.intervals import INTERVAL
from dkan_core.evaluation.metrics import METRIC_NAMES, Ranking, rank_scores
from dkan_core.report.figures import evaluation as figures
from dkan_core.report.history import History, training_section
from dkan_core.report.templating import Card, digits_of, inline_script, render_html, score
from dkan_core.utils.arrays import Array
from dkan_core.utils.messages import counted

# Labels with a section: each has six figures of some 100 KB in all, and browsers scroll a larger page slowly. The table
# lists every label.
LABEL_SECTIONS = 30
# Items shown of a list among the facts about data and model, such as crosses.
LIST_ITEMS = 24
# With fewer rows, the metrics of a slice and the effect of a level are mostly chance, and are shown in gray.
FEW_ROWS = 30


def render_report(
    *,
    title: str,
    labels: Array,
    probabilities: Array,
    names: Sequence[str],
    metrics: Mapping[str, Any],
    thresholds: Mapping[str, float],
    history: History,
    data_summary: Mapping[str, Any],
    model_summary: Mapping[str, Any],
    provenance: Mapping[str, Any] = MappingProxyType({}),
    split: str = "",
    compared: Markup | None = None,
    learned: Mapping[str, Markup] = MappingProxyType({}),
    errors: Mapping[str, Any] = MappingProxyType({}),
    columns: Mapping[str, Any] | None = None,
) -> Markup:
    """Render the evaluation of a model on one split as a self-contained HTML page.

    Args:
        title: Heading of the page.
        labels: ``(N, L)`` uint8, 0, 1 or 255 (not measured).
        probabilities: ``(N, L)`` predicted probabilities.
        names: The ``L`` label names.
        metrics: What ``dkan_core.evaluation.metrics.compute_metrics`` returned for them.
        thresholds: Operating threshold by label name, chosen on validation; a label may have none.
        history: One entry per evaluation during training, with keys among ``epoch``, ``step``, ``loss``,
            ``average_precision``, ``rows_per_second`` and ``seconds``; may be empty.
        data_summary: Facts about the data, nested as they are.
        model_summary: Facts about the model, nested as they are.
        provenance: What made the page, of which data and model.
        split: How it was decided which rows are in this split, as a sentence.
        compared: Section that compares the model with an earlier one.
        learned: Section on what the model learned, by label; a label may have none.
        errors: ``WorstErrors`` by label; a label may have none.
        columns: The columns and how far they have moved, from ``describe_columns``.

    Returns:
        The page. Every string given is escaped; the sections are not.
    """
    several = len(names) > 1
    what = f"{len(names)} labels" if several else f"one label: {names[0]}"
    sections = [
        _section(rank_scores(labels[:, index], probabilities[:, index]), thresholds.get(name))
        | {"name": name, "facts": metrics["labels"][name], "errors": errors.get(name), "learned": learned.get(name)}
        for index, name in enumerate(names[:LABEL_SECTIONS])
    ]
    return render_html(
        "evaluation",
        title=title,
        lead=" ".join(filter(None, [f"{len(labels):,} rows, {what}.", split])),
        warnings=metrics.get("warnings", ()),
        facts=_facts(metrics, labels, several),
        weighted="average_precision_unweighted" in metrics,
        compared=compared,
        labels=[(name, metrics["labels"][name], thresholds.get(name)) for name in names],
        pooled={"curves": _curves(rank_scores(labels, probabilities), None)} if several else None,
        sections=sections,
        slices=metrics.get("slices"),
        few_rows=FEW_ROWS,
        columns=columns,
        training=training_section(history) if history else None,
        data_summary=data_summary,
        model_summary=model_summary,
        provenance=provenance,
        list_items=LIST_ITEMS,
        script=inline_script("explorer.js"),
    )


def _facts(metrics: Mapping[str, Any], labels: Array, several: bool) -> list[tuple[str, str, str]]:
    by_label = metrics["labels"].values()
    prevalence = metrics["prevalence"]
    precision = metrics["average_precision"]
    # The log loss of a model that always predicts the prevalence.
    constant_loss = _mean_over(by_label, lambda rate: -sum(p * math.log(p) for p in (rate, 1 - rate) if p))
    constant_brier = _mean_over(by_label, lambda rate: rate * (1 - rate))
    # only labels that have an average precision, as their mean is compared with this baseline
    no_skill = _mean_over((label for label in by_label if label["average_precision"] is not None), lambda rate: rate)
    lift = f", lift {precision / no_skill:.3g}" if precision and no_skill else ""
    measured = sum(label["rows"] for label in by_label)
    # Counted, because a weighted prevalence does not give the number of positives.
    positives = np.count_nonzero(labels == 1)
    digits = digits_of(measured // max(1, len(by_label)))

    def tile(key: str, beside: str, name: str = "") -> tuple[str, str, str]:
        interval = metrics.get(key + INTERVAL)
        bounds = f"95%: {score(interval[0], digits)} to {score(interval[1], digits)}; " if interval else ""
        return name or METRIC_NAMES[key], score(metrics[key], digits), bounds + beside

    shown = [
        tile("average_precision", f"no skill {score(no_skill, digits)}{lift}"),
        tile("roc_auc", "no skill 0.5"),
        tile("log_loss", f"constant prediction {score(constant_loss, digits)}"),
        tile("brier", f"constant prediction {score(constant_brier, digits)}"),
        (METRIC_NAMES["prevalence"], score(prevalence, digits), counted(int(positives), "positive")),
        ("Rows", f"{metrics['rows']:,}", f"{counted(measured, 'label')} measured"),
    ]
    if several:
        shown.insert(1, tile("average_precision_micro", "all labels as one ranking", name="AP, pooled"))
    return shown


def _section(ranking: Ranking, threshold: float | None) -> dict[str, Any]:
    """Return the page's values for one label: curves, results of alerting, and the operating point."""
    operating = None
    if threshold is not None:
        found, false_alerts = ranking.alerts_at(threshold)
        operating = {
            "threshold": threshold,
            "found": found,
            "missed": ranking.positives - found,
            "false_alerts": false_alerts,
            "rejected": ranking.negatives - false_alerts,
        }
    curves = _curves(ranking, threshold)
    return {
        "curves": curves,
        "alerts": threshold_table(ranking, threshold),
        "operating": operating,
        # The costs of both kinds of errors matter only if both classes occur.
        "counts": threshold_counts(ranking, threshold) if curves else None,
        "prevalence_percent": 100 * ranking.positives / max(1, ranking.rows),
        "digits": digits_of(ranking.rows),
    }


def _curves(ranking: Ranking, threshold: float | None) -> list[Card]:
    """Return the curves of one label; none where only one class was measured."""
    if not ranking.has_both_classes:
        return []
    no_skill = ranking.positives / ranking.rows
    return [
        (
            "Precision and recall",
            f"Share of alerts that are correct, against share of positives found. Dashed: no skill, {no_skill:.3g}.",
            figures.precision_recall_figure(ranking, threshold),
        ),
        (
            "ROC",
            "Share of positives found, against share of negatives alerted on. Dashed: no skill.",
            figures.roc_figure(ranking, threshold),
        ),
        (
            "Calibration",
            "Observed rate, against mean probability, in bins of equal count; bars: 95% intervals. Dashed: perfect.",
            figures.calibration_figure(ranking),
        ),
        (
            "Scores by class",
            "Number of rows of each class by score. Logarithmic scale.",
            figures.score_figure(ranking),
        ),
        (
            "Cumulative gain",
            "Share of positives found, against share of rows alerted on. Dashed: no skill. Gray: a perfect ranking.",
            figures.gain_figure(ranking),
        ),
        (
            "Lift",
            "How many times more positives are among the alerts than among as many rows at random. Dashed: no skill.",
            figures.lift_figure(ranking),
        ),
    ]


def _mean_over(by_label: Iterable[Mapping[str, Any]], formula: Callable[[float], float]) -> float | None:
    values = [formula(label["prevalence"]) for label in by_label if label["prevalence"] is not None]
    return sum(values) / len(values) if values else None
