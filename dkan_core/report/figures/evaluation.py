"""Figures of the report: how good a model's scores are, and how training went.

A ``ranking`` is that of the probabilities of one label, or of all labels pooled; a ``threshold`` is the operating
threshold to mark.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from dkan_core.evaluation.curves import (
    calibration_points,
    gain_points,
    precision_recall_points,
    roc_points,
    score_histogram,
)
from dkan_core.evaluation.intervals import rate_interval
from dkan_core.evaluation.metrics import Ranking
from dkan_core.report.figures.axes import Axis, Panel, even_axis, even_ticks, fit, tick_texts
from dkan_core.report.figures.canvas import (
    ACCENT,
    CARD_HEIGHT,
    CARD_WIDTH,
    DASHED,
    QUIET,
    WARM,
    Canvas,
    steps,
    text_width,
)
from dkan_core.report.figures.svg import page_element, to_svg
from dkan_core.utils.messages import counted

FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# Lower end of a logarithmic axis of counts, which has no zero and should show a bin of one row.
HALF_A_ROW = 0.5
# Points of a curve that show their values: each is some 10 points wide and adds a hundred bytes to the page.
HOVERED = 32


def precision_recall_figure(ranking: Ranking, threshold: float | None) -> Markup:
    """Draw precision over recall with the no-skill line and the operating point."""
    recall, precision, thresholds = precision_recall_points(ranking)
    panel = _unit_square("Recall", "Precision")
    _dashed(panel, [0, 1], [precision[-1], precision[-1]])
    # Step-wise, as average precision sums it: between two points, the precision of the higher recall holds.
    x, y = np.repeat([0.0, *recall], 2)[:-1], np.repeat([precision[0], *precision], 2)[1:]
    panel.canvas.line(panel.at(x, y), ACCENT)
    if threshold is not None:
        found, false = ranking.alerts_at(threshold)
        if found:
            _mark(panel, found / ranking.positives, found / (found + false))
    told = [f"recall {x:.3f}, precision {y:.3f}{_at(t)}" for x, y, t in zip(recall, precision, thresholds, strict=True)]
    _hover(panel, recall, told)
    return page_element(to_svg(panel.canvas), "Precision-recall curve")


def roc_figure(ranking: Ranking, threshold: float | None) -> Markup:
    """Draw the true over the false positive rate with the diagonal and the operating point."""
    false_rate, true_rate, thresholds = roc_points(ranking)
    panel = _unit_square("False positive rate", "True positive rate")
    _dashed(panel, [0, 1], [0, 1])
    panel.canvas.line(panel.at(false_rate, true_rate), ACCENT)
    if threshold is not None:
        found, false = ranking.alerts_at(threshold)
        _mark(panel, false / ranking.negatives, found / ranking.positives)
    points = zip(false_rate, true_rate, thresholds, strict=True)
    _hover(panel, false_rate, [f"false {x:.3f}, true positive rate {y:.3f}{_at(t)}" for x, y, t in points])
    return page_element(to_svg(panel.canvas), "ROC curve")


def gain_figure(ranking: Ranking) -> Markup:
    """Draw the share of positives found over the share of rows alerted on, with no skill and a perfect order."""
    alerted, found, thresholds = gain_points(ranking)
    panel = _unit_square("Share of rows alerted on", "Share of positives found")
    _dashed(panel, [0, 1], [0, 1])
    panel.canvas.line(panel.at([0, ranking.positives / ranking.rows, 1], [0, 1, 1]), QUIET, width=1.2)
    panel.canvas.line(panel.at(alerted, found), ACCENT)
    points = zip(alerted, found, thresholds, strict=True)
    _hover(panel, alerted, [f"{x:.1%} of the rows have {y:.1%} of the positives{_at(t)}" for x, y, t in points])
    return page_element(to_svg(panel.canvas), "Cumulative gain")


def lift_figure(ranking: Ranking) -> Markup:
    """Draw how many times more positives are among the highest-scored rows than among as many at random."""
    alerted, found, thresholds = (points[1:] for points in gain_points(ranking))
    lift = [share / rows for share, rows in zip(found, alerted, strict=True)]
    high = 1.06 * max([*lift, 1.0])
    y = Axis(low=0.0, high=high, ticks=tick_texts(even_ticks(0.0, high)), label="Lift")
    panel = fit(Canvas(CARD_WIDTH, CARD_HEIGHT), _unit_axis("Share of rows alerted on"), y)
    _dashed(panel, [0, 1], [1, 1])
    panel.canvas.line(panel.at(alerted, lift), ACCENT)
    points = zip(alerted, lift, thresholds, strict=True)
    _hover(panel, alerted, [f"lift {y:.2f} at {x:.1%} of the rows{_at(t)}" for x, y, t in points])
    return page_element(to_svg(panel.canvas), "Lift")


def calibration_figure(ranking: Ranking) -> Markup:
    """Draw the observed rate over the mean probability of bins of equal count, with the diagonal."""
    probability, rate, rows = calibration_points(ranking)
    bounds = [rate_interval(share * count, count) for share, count in zip(rate, rows, strict=True)]
    # With rare positives most of the unit square would be empty, so the axes end where the bins do.
    top = min(1.0, 1.15 * max([*probability, *rate])) or 1.0
    ticks = tick_texts(even_ticks(0.0, top))
    x = Axis(low=0.0, high=top, ticks=ticks, label="Mean predicted probability")
    y = Axis(low=0.0, high=1.02 * top, ticks=ticks, label="Observed rate")
    panel = fit(Canvas(CARD_WIDTH, CARD_HEIGHT), x, y)
    _dashed(panel, [0, top], [0, top])
    for position, (low, high) in zip(probability, bounds, strict=True):
        # Intervals are cut where the axis ends.
        panel.canvas.line(panel.at([position, position], [low, min(high, 1.02 * top)]), ACCENT, width=1.2, opacity=0.5)
    panel.canvas.line(panel.at(probability, rate), ACCENT, width=1.2)
    for position, share in zip(probability, rate, strict=True):
        panel.dot(position, share, ACCENT)
    points = zip(probability, rate, bounds, rows, strict=True)
    told = [f"predicted {p:.3f}, observed {r:.3f} (95%: {a:.3f} to {b:.3f}), {n:,} rows" for p, r, (a, b), n in points]
    panel.hover(probability, told)
    return page_element(to_svg(panel.canvas), "Calibration curve")


def score_figure(ranking: Ranking) -> Markup:
    """Draw how many rows of each class have which score, on a logarithmic scale."""
    edges, negatives, positives = score_histogram(ranking)
    high = 3.0 * max([*negatives, *positives, 1])
    ticks = [(10.0**power, _short_count(10.0**power)) for power in range(12) if 10.0**power <= high]
    y = Axis(low=HALF_A_ROW, high=high, ticks=ticks, label="Rows", forward=np.log)
    panel = fit(Canvas(CARD_WIDTH, CARD_HEIGHT), _unit_axis("Predicted probability"), y)
    right = panel.box.right
    for counts, color, name in ((positives, WARM, "positives"), (negatives, QUIET, "negatives")):
        if any(counts):
            outline_P2 = steps(np.asarray(edges), np.maximum(counts, HALF_A_ROW), HALF_A_ROW)
            points_P2 = panel.at(outline_P2[:, 0], outline_P2[:, 1])
            panel.canvas.area(points_P2, color, opacity=0.28)
            panel.canvas.line(points_P2, color, width=1.4)
            right = _legend(panel, name, color, right)
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    points = zip(itertools.pairwise(edges), positives, negatives, strict=True)
    texts = [
        f"{a:.3g} to {b:.3g}: {counted(int(p), 'positive')}, {counted(int(n), 'negative')}" for (a, b), p, n in points
    ]
    panel.hover(middles, texts)
    return page_element(to_svg(panel.canvas), "Histogram of scores by class")


def history_figure(
    name: str, x: Sequence[float], curves: Mapping[str, Sequence[float | None]], *, xlabel: str, mark_best: bool
) -> Markup:
    """Draw quantities of the training history that are alike.

    Args:
        name: What they are.
        x: Epochs or steps.
        curves: By what each is called, its values, one for each of ``x``; None where it was not measured. The first
            one stands out.
        xlabel: What ``x`` is.
        mark_best: Mark the highest value of the first.
    """
    points = {
        which: [(position, value) for position, value in zip(x, values, strict=True) if value is not None]
        for which, values in curves.items()
    }
    shown = [value for each in points.values() for _, value in each]
    across = even_axis(min(x), max(x), xlabel, whole=x[-1] > 5, share=0.03)
    panel = fit(Canvas(CARD_WIDTH, CARD_HEIGHT), across, even_axis(min(shown), max(shown), name, share=0.12))
    right = panel.box.right
    for (which, each), color in zip(points.items(), (ACCENT, QUIET), strict=False):
        panel.canvas.line(panel.at(*zip(*each, strict=True)), color)
        # More than 40 dots would touch each other.
        if len(each) <= 40:
            for position, value in each:
                panel.dot(position, value, color, radius=1.75)
        if len(points) > 1:
            right = _legend(panel, which, color, right)
    first = next(iter(points.values()))
    if mark_best:
        _mark(panel, *max(first, key=lambda point: point[1]))
    told = [
        f"{xlabel.lower()} {position:g}: "
        + ", ".join(f"{which} {value:.4g}" for which, each in points.items() for at, value in each if at == position)
        for position in x
    ]
    _hover(panel, x, told)
    return page_element(to_svg(panel.canvas), f"{name} by {xlabel.lower()}")


def _legend(panel: Panel, name: str, color: str, right: float) -> float:
    """Write the name of a color's curve; return where the next name may end."""
    across = panel.box.top + 5
    panel.canvas.text(right, across, name, anchor="end")
    right -= text_width(name) + 4
    panel.canvas.line([(right - 12, across), (right, across)], color, width=1.4)
    return right - 24


def _hover(panel: Panel, x: Sequence[float], texts: Sequence[str]) -> None:
    """Show the values of some points of a curve, evenly spread over the panel."""
    wanted = np.linspace(min(x), max(x), HOVERED)
    # Of points with the same x, the last one is taken, where the curve goes on.
    kept = np.unique(np.searchsorted(x, wanted, side="right").clip(1, len(x)) - 1)
    panel.hover([x[position] for position in kept], [texts[position] for position in kept])


def _at(threshold: float) -> str:
    return f" at threshold {threshold:.4g}"


def _unit_axis(label: str, high: float = 1.0) -> Axis:
    return Axis(low=0.0, high=high, ticks=tick_texts(FIFTHS), label=label)


def _unit_square(xlabel: str, ylabel: str) -> Panel:
    return fit(Canvas(CARD_WIDTH, CARD_HEIGHT), _unit_axis(xlabel), _unit_axis(ylabel, high=1.02))


def _dashed(panel: Panel, x: Sequence[float], y: Sequence[float]) -> None:
    panel.canvas.line(panel.at(x, y), QUIET, width=1.2, dash=DASHED)


def _mark(panel: Panel, x: float, y: float) -> None:
    panel.dot(x, y, WARM, radius=4, rim=1.5)


def _short_count(value: float) -> str:
    """Write a power of ten in at most four characters.

    >>> [_short_count(value) for value in (1, 100, 10_000, 1_000_000)]
    ['1', '100', '10k', '1M']
    """
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"
