"""The report of an evaluation: one HTML page that needs no network and no script.

It is shown in a sandboxed frame by the Kubeflow UI and opens as a file anywhere. The same input gives the same bytes.

Shape suffixes: N rows, L labels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from dkan_core.evaluation.curves import confusion_matrix, threshold_table
from dkan_core.evaluation.metrics import Array
from dkan_core.report import figures
from dkan_core.report.templating import Card, render_html, score
from dkan_core.training import breakdown

# Each has four figures, together some 100 KB: more sections make a page that browsers scroll slowly. The table lists
# every label.
LABEL_SECTIONS = 30
# Of a list in the facts about data and model, such as crosses.
LIST_ITEMS = 24
History = Sequence[Mapping[str, Any]]


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
    compared: Markup | None = None,
    learned: Markup | None = None,
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
        compared: Section that compares the model with an earlier one.
        learned: Section on what the model learned.

    Returns:
        The page. Every string given is escaped; the two sections are not.
    """
    several = len(names) > 1
    what = f"{len(names)} labels" if several else f"one label: {names[0]}"
    sections = [
        _section(f"label{place}", labels[:, place], probabilities[:, place], thresholds.get(name))
        | {"name": name, "facts": metrics["labels"][name]}
        for place, name in enumerate(names[:LABEL_SECTIONS])
    ]
    return render_html(
        "evaluation",
        title=title,
        lead=f"{len(labels):,} rows, {what}",
        facts=_facts(metrics, several),
        compared=compared,
        labels=[(name, metrics["labels"][name], thresholds.get(name)) for name in names],
        pooled={"curves": _curves("pooled", labels.ravel(), probabilities.ravel(), None)} if several else None,
        sections=sections,
        learned=learned,
        training=_training(history) if history else None,
        data_summary=data_summary,
        model_summary=model_summary,
        list_items=LIST_ITEMS,
    )


def _facts(metrics: Mapping[str, Any], several: bool) -> list[tuple[str, str, str]]:
    by_label = metrics["labels"].values()
    prevalence, precision = metrics["prevalence"], metrics["average_precision"]
    # What a model that always answers with the prevalence would score.
    constant_loss = _mean_over(by_label, lambda rate: -sum(p * math.log(p) for p in (rate, 1 - rate) if p))
    constant_brier = _mean_over(by_label, lambda rate: rate * (1 - rate))
    # a label without an average precision must not move the baseline that the mean is held against
    no_skill = _mean_over((label for label in by_label if label["average_precision"] is not None), lambda rate: rate)
    lift = f", lift {precision / no_skill:.3g}" if precision and no_skill else ""
    measured = sum(label["rows"] for label in by_label)
    positives = sum(round((label["prevalence"] or 0) * label["rows"]) for label in by_label)
    shown = [
        ("Average precision", score(precision), f"no skill {score(no_skill)}{lift}"),
        ("ROC AUC", score(metrics["roc_auc"]), "no skill 0.5000"),
        ("Log loss", score(metrics["log_loss"]), f"constant guess {score(constant_loss)}"),
        ("Brier score", score(metrics["brier"]), f"constant guess {score(constant_brier)}"),
        ("Prevalence", score(prevalence), f"{positives:,} positives"),
        ("Rows", f"{metrics['rows']:,}", f"{measured:,} labels measured"),
    ]
    if several:
        shown.insert(1, ("AP, pooled", score(metrics["average_precision_micro"]), "all labels as one ranking"))
    return shown


def _section(key: str, labels_N: Array, scores_N: Array, threshold: float | None) -> dict[str, Any]:
    """Return what the page shows of one label: curves, what alerting brings, and the operating point."""
    operating = None
    if threshold is not None:
        (rejected, false_alerts), (missed, found) = confusion_matrix(labels_N, scores_N, threshold)
        operating = {
            "threshold": threshold,
            "found": found,
            "missed": missed,
            "false_alerts": false_alerts,
            "rejected": rejected,
        }
    return {
        "curves": _curves(key, labels_N, scores_N, threshold),
        "alerts": threshold_table(labels_N, scores_N, threshold),
        "operating": operating,
    }


def _curves(key: str, labels_N: Array, scores_N: Array, threshold: float | None) -> list[Card]:
    """Return the curves of one label; none where only one class was measured."""
    positives, negatives = (int(np.count_nonzero(labels_N == value)) for value in (1, 0))
    if not positives or not negatives:
        return []
    no_skill = positives / (positives + negatives)
    return [
        (
            "Precision and recall",
            f"Share of alerts that are right, over share of positives found. Dashed: no skill, {score(no_skill)}.",
            figures.precision_recall_figure(f"{key}-pr", labels_N, scores_N, threshold),
        ),
        (
            "ROC",
            "Share of positives found, over share of negatives alerted on. Dashed: no skill.",
            figures.roc_figure(f"{key}-roc", labels_N, scores_N, threshold),
        ),
        (
            "Calibration",
            "Observed rate, over mean probability, in bins of equal count. Dashed: perfect.",
            figures.calibration_figure(f"{key}-calibration", labels_N, scores_N),
        ),
        (
            "Scores by class",
            "How many rows of each class have which score. Logarithmic scale.",
            figures.score_figure(f"{key}-scores", labels_N, scores_N),
        ),
    ]


def _training(history: History) -> dict[str, Any]:
    axis = next((key for key in ("epoch", "step") if all(key in entry for entry in history)), None)
    cards: list[Card] = []
    for key, name, explanation in (
        ("average_precision", "Validation average precision", "Evaluated on a snapshot while training went on."),
        ("loss", "Training loss", "As reported at each evaluation."),
    ):
        points = [
            (entry[axis] if axis else place, entry[key])
            for place, entry in enumerate(history, 1)
            # Of labels with one class only, an evaluation has no average precision.
            if entry.get(key) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            best = key == "average_precision"
            label = (axis or "evaluation").capitalize()
            figure = figures.history_figure(f"history-{key}", name, x, y, xlabel=label, mark_best=best)
            cards.append((name, f"{explanation} The dot is the best, {max(y):.4f}." if best else explanation, figure))
    spent = breakdown.total(history)
    parts = [part for part in breakdown.PARTS if any(part in each for each in spent.values())]
    return {
        "pace": _pace(history),
        "curves": cards,
        "parts": parts,
        "meaning": breakdown.MEANING,
        "times": [(name, _times(each, parts)) for name, each in spent.items()],
    }


def _times(spent: Mapping[str, Any], parts: Sequence[breakdown.Part]) -> list[str]:
    """Return what a process spent its time on, and its memory."""
    shares = [f"{breakdown.share(spent, part):.1%}" if part in spent else "" for part in parts]
    return [*shares, f"{spent.get('seconds', 0.0):,.1f}", f"{spent['peak_memory'] / 1e6:,.0f} MB"]


def _pace(history: History) -> str:
    last = history[-1]
    parts = [f"{len(history):,} evaluation{'s' if len(history) > 1 else ''}"]
    if last.get("seconds") is not None:
        parts.append(f"{last['seconds']:,.0f} seconds")
    if last.get("rows_per_second") is not None:
        parts.append(f"{last['rows_per_second']:,.0f} rows per second at the end")
    return ", ".join(parts) + "."


def _mean_over(by_label: Iterable[Mapping[str, Any]], formula: Callable[[float], float]) -> float | None:
    values = [formula(label["prevalence"]) for label in by_label if label["prevalence"] is not None]
    return sum(values) / len(values) if values else None
