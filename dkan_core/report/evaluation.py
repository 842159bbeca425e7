"""The report of an evaluation: one HTML page that needs no network and no script.

It is shown in a sandboxed frame by the Kubeflow UI and opens as a file anywhere. The same input gives the same bytes.

Shape suffixes: N rows, L labels.
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from dkan_core.evaluation.metrics import Array, confusion_matrix, threshold_table
from dkan_core.report import figures, page
from dkan_core.training import breakdown

LABEL_SECTIONS = 30
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
    compared: str = "",
    learned: str = "",
) -> str:
    """Render the evaluation of a model on one split as a self-contained HTML page.

    Args:
        title: Heading of the page.
        labels: ``(N, L)`` uint8, 0, 1 or 255 (not measured).
        probabilities: ``(N, L)`` predicted probabilities.
        names: The ``L`` label names.
        metrics: What ``dkan_core.evaluation.metrics.compute_metrics`` returned for them.
        thresholds: Operating threshold by label name, chosen on validation; a label may have none.
        history: One entry an evaluation during training, with keys among ``epoch``, ``step``, ``loss``,
            ``average_precision``, ``rows_per_second`` and ``seconds``; may be empty.
        data_summary: Facts about the data, nested as they are.
        model_summary: Facts about the model, nested as they are.
        compared: Section that holds the model against an earlier one, HTML as it is.
        learned: Section on what the model learned, HTML as it is.

    Returns:
        The page. Every other string given is escaped.
    """
    single = len(names) == 1
    body = [_tiles(metrics, single), compared]
    if single:
        body += [_single_label(labels[:, 0], probabilities[:, 0], thresholds.get(names[0]))]
    else:
        body += [_label_table(metrics, names, thresholds), _pooled(labels, probabilities)]
        body += [_label_sections(labels, probabilities, names, metrics, thresholds)]
    body += [learned, _training(history), _summaries(data_summary, model_summary)]
    rows, what = f"{len(labels):,} rows", "one label" if single else f"{len(names)} labels"
    lead = f"{rows}, {what}" + (f": {names[0]}" if single else "")
    return page.render_page(title=title, lead=lead, body="\n".join(filter(None, body)))


def _tiles(metrics: Mapping[str, Any], single: bool) -> str:
    by_label = metrics["labels"].values()
    prevalence, precision = metrics["prevalence"], metrics["average_precision"]
    constant_loss = _mean_over(by_label, lambda rate: -sum(p * math.log(p) for p in (rate, 1 - rate) if p))
    constant_brier = _mean_over(by_label, lambda rate: rate * (1 - rate))
    # a label without an average precision must not move the baseline that the mean is held against
    no_skill = _mean_over((label for label in by_label if label["average_precision"] is not None), lambda rate: rate)
    lift = f", lift {precision / no_skill:.3g}" if precision and no_skill else ""
    measured = sum(label["rows"] for label in by_label)
    positives = sum(round((label["prevalence"] or 0) * label["rows"]) for label in by_label)
    shown = [
        ("Average precision", _score(precision), f"no skill {_score(no_skill)}{lift}"),
        ("ROC AUC", _score(metrics["roc_auc"]), "no skill 0.5000"),
        ("Log loss", _score(metrics["log_loss"]), f"constant guess {_score(constant_loss)}"),
        ("Brier score", _score(metrics["brier"]), f"constant guess {_score(constant_brier)}"),
        ("Prevalence", _score(prevalence), f"{positives:,} positives"),
        ("Rows", f"{metrics['rows']:,}", f"{measured:,} labels measured"),
    ]
    if not single:
        shown.insert(1, ("AP, pooled", _score(metrics["average_precision_micro"]), "all labels as one ranking"))
    return page.tiles(shown) + page.note("Means over the labels that define the metric.", not single)


def _single_label(labels_N: Array, scores_N: Array, threshold: float | None) -> str:
    return (
        "<h2>How well it ranks and how far it can be trusted</h2>"
        + page.note("The dot is the operating threshold, chosen on the validation split.", threshold is not None)
        + _curves("label", labels_N, scores_N, threshold)
        + "<h2>Choosing a threshold</h2>"
        + _threshold_rows(labels_N, scores_N, threshold)
    )


def _pooled(labels_NL: Array, scores_NL: Array) -> str:
    labels, scores = labels_NL.ravel(), scores_NL.ravel()
    return (
        "<h2>All labels pooled</h2>" + page.note("Every measured cell is one row.") + _curves("pooled", labels, scores)
    )


def _label_table(metrics: Mapping[str, Any], names: Sequence[str], thresholds: Mapping[str, float]) -> str:
    rows = []
    for name in names:
        label = metrics["labels"][name]
        precision = label["average_precision"]
        bar = f'<span class="bar"><i style="width:{100 * precision:.1f}%"></i></span>' if precision is not None else ""
        cells = [
            f'<td class="name">{html.escape(name)}</td>',
            f"<td>{bar}{_score(precision)}</td>",
            *(f"<td>{_score(label[key])}</td>" for key in ("prevalence", "roc_auc", "log_loss", "brier")),
            f"<td>{_score(thresholds.get(name))}</td><td>{label['rows']:,}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("Label", "Average precision", "Prevalence", "ROC AUC", "Log loss", "Brier", "Threshold", "Rows")
    return (
        "<h2>Labels</h2>"
        + page.note("Prevalence is the average precision of no skill. Thresholds were chosen on the validation split.")
        + page.table(heads, rows)
    )


def _label_sections(
    labels_NL: Array,
    scores_NL: Array,
    names: Sequence[str],
    metrics: Mapping[str, Any],
    thresholds: Mapping[str, float],
) -> str:
    sections = []
    for place, name in enumerate(names[:LABEL_SECTIONS]):
        labels_N, scores_N, threshold = labels_NL[:, place], scores_NL[:, place], thresholds.get(name)
        facts = metrics["labels"][name]
        sections.append(
            f"<details><summary><b>{html.escape(name)}</b><span>AP {_score(facts['average_precision'])}, "
            f'ROC AUC {_score(facts["roc_auc"])}, {facts["rows"]:,} rows</span></summary><div class="inside">'
            + _curves(f"label{place}", labels_N, scores_N, threshold)
            + _threshold_rows(labels_N, scores_N, threshold)
            + "</div></details>"
        )
    left_out = len(names) - len(sections)
    note = f"The first {len(sections)} labels; {left_out} more are in the table above only."
    return "<h2>Label by label</h2>" + page.note(note, left_out > 0) + "".join(sections)


def _curves(key: str, labels_N: Array, scores_N: Array, threshold: float | None = None) -> str:
    positives, negatives = (int(np.count_nonzero(labels_N == value)) for value in (1, 0))
    if not positives or not negatives:
        return page.note("The curves need both a positive and a negative row; this split has no such pair.")
    no_skill = positives / (positives + negatives)
    cards = [
        (
            "Precision and recall",
            f"Share of alerts that are right, over share of positives found. Dashed: no skill, {_score(no_skill)}.",
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
    return page.cards(cards)


def _threshold_rows(labels_N: Array, scores_N: Array, threshold: float | None) -> str:
    rows = []
    for row in threshold_table(labels_N, scores_N, threshold):
        tag, kind = ('<span class="tag">operating</span>', ' class="operating"') if row["operating"] else ("", "")
        cells = [f"{row['alerts_per_1000']:,.1f}{tag}", _score(row["threshold"])]
        cells += [_score(row[key]) for key in ("precision", "recall", "f1")]
        rows.append(f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    note = "What alerting on the highest-scored rows brings."
    if threshold is not None:
        (rejected, false_alerts), (missed, found) = confusion_matrix(labels_N, scores_N, threshold)
        note += (
            f" The operating threshold of {_score(threshold)} finds {found:,} positives and misses {missed:,}; "
            f"it alerts on {false_alerts:,} negatives and leaves {rejected:,} alone."
        )
    heads = ("Alerts per 1,000 rows", "Threshold", "Precision", "Recall", "F1")
    return f"<div>{page.note(note)}{page.table(heads, rows)}</div>"


def _training(history: History) -> str:
    if not history:
        return ""
    axis = next((key for key in ("epoch", "step") if all(key in entry for entry in history)), None)
    cards = []
    for key, name, explanation in (
        ("average_precision", "Validation average precision", "Evaluated on a snapshot while training went on."),
        ("loss", "Training loss", "As reported at each evaluation."),
    ):
        points = [
            (entry[axis] if axis else place, entry[key])
            for place, entry in enumerate(history, 1)
            if entry.get(key) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            best = key == "average_precision"
            label = (axis or "evaluation").capitalize()
            figure = figures.history_figure(f"history-{key}", name, x, y, xlabel=label, mark_best=best)
            cards.append((name, f"{explanation} The dot is the best, {max(y):.4f}." if best else explanation, figure))
    return "<h2>Training</h2>" + page.note(_pace(history)) + page.cards(cards) + _times(history)


def _times(history: History) -> str:
    """Show what each process of the run spent its time on."""
    spent = breakdown.total(history)
    parts = [part for part in breakdown.PARTS if any(part in each for each in spent.values())]
    rows = []
    for name, each in spent.items():
        cells = [f"{breakdown.share(each, part):.1%}" if part in each else "" for part in parts]
        cells += [f"{each.get('seconds', 0.0):,.1f}", f"{each['peak_memory'] / 1e6:,.0f} MB"]
        cells = [f"<td>{cell}</td>" for cell in cells]
        rows.append(f'<tr><td class="name">{html.escape(name)}</td>{"".join(cells)}</tr>')
    if not rows:
        return ""
    meaning = "; ".join(f"{part}: {breakdown.MEANING[part]}" for part in parts)
    heads = ("Process", *map(str.capitalize, parts), "Seconds", "Peak memory")
    return "<h3>Where the time went</h3>" + page.note(f"{meaning}.") + page.table(heads, rows)


def _pace(history: History) -> str:
    last = history[-1]
    parts = [f"{len(history):,} evaluation{'s' if len(history) > 1 else ''}"]
    if last.get("seconds") is not None:
        parts.append(f"{last['seconds']:,.0f} seconds")
    if last.get("rows_per_second") is not None:
        parts.append(f"{last['rows_per_second']:,.0f} rows per second at the end")
    return ", ".join(parts) + "."


def _summaries(data_summary: Mapping[str, Any], model_summary: Mapping[str, Any]) -> str:
    parts = [
        f'<div><h2>{name}</h2><div class="scroll">{_value(summary)}</div></div>'
        for name, summary in (("Data", data_summary), ("Model", model_summary))
        if summary
    ]
    return f'<div class="columns">{"".join(parts)}</div>'


def _value(value: Any) -> str:
    """Show a nested value: a mapping as a table, a list in one line, the rest as text.

    >>> _value([1200, "a<b", None, True])
    '1,200, a&lt;b, –, yes'
    """
    if isinstance(value, Mapping):
        rows = [
            f"<tr><th>{html.escape(str(key).replace('_', ' '))}</th><td>{_value(inner)}</td></tr>"
            for key, inner in value.items()
        ]
        return f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>'
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return "".join(_value(item) for item in value[:LIST_ITEMS]) + _more(value)
        return ", ".join(_value(item) for item in value[:LIST_ITEMS]) + _more(value) or "–"
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):.6g}"
    return html.escape(str(value))


def _more(items: Sequence[Any]) -> str:
    return f" and {len(items) - LIST_ITEMS:,} more" if len(items) > LIST_ITEMS else ""


def _score(value: float | None) -> str:
    """Write a metric with four places, or as many digits as a small one needs.

    >>> _score(0.5), _score(0.000123456), _score(None)
    ('0.5000', '0.000123', '–')
    """
    if value is None:
        return "–"
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"


def _mean_over(by_label: Iterable[Mapping[str, Any]], formula: Callable[[float], float]) -> float | None:
    values = [formula(label["prevalence"]) for label in by_label if label["prevalence"] is not None]
    return sum(values) / len(values) if values else None
