"""Figures of the report, each one inline SVG: text stays text, and the page's style sheet sets the colors.

Figures are drawn on ``matplotlib.figure.Figure`` alone: no pyplot, no global state, no display. The same numbers
give the same bytes. Labels and scores are those of one label, or of all labels pooled.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dkan_core.evaluation.curves import (
    calibration_points,
    confusion_matrix,
    precision_recall_points,
    roc_points,
    score_histogram,
)
from dkan_core.evaluation.metrics import Array

# The figures are drawn in these colors, and each is then handed over to a variable of report.css.
MUTED, GRID, ACCENT, WARM, QUIET, PAPER = "#64707f", "#e4e8ed", "#2460a7", "#c8692b", "#9aa6b4", "#fefefe"
VARIABLES = {
    MUTED: "--muted",
    GRID: "--grid",
    ACCENT: "--accent",
    WARM: "--warm",
    QUIET: "--quiet",
    PAPER: "--card",
}
DASHED = (0, (4, 3))
POINTS_PER_INCH = 72
# The date would make every report another file; the rest is matplotlib's name and version.
NO_METADATA: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# Text is left as text and ids are hashed with a salt of ours, so that the same numbers give the same bytes. The ground
# is transparent, so that a page shows through, dark or light.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dkan",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": MUTED,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 5,
    "ytick.major.pad": 5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}


def precision_recall_figure(key: str, labels_N: Array, scores_N: Array, threshold: float | None = None) -> Markup:
    """Draw precision over recall with the no-skill line and the operating point.

    Args:
        key: Prefix of the ids inside the SVG, unlike any other figure's on the page.
        labels_N: 0, 1 or 255 (not measured).
        scores_N: Probabilities.
        threshold: Operating threshold to mark.
    """
    recall, precision, _ = precision_recall_points(labels_N, scores_N)

    def draw(axes: Axes) -> None:
        axes.axhline(precision[-1], color=QUIET, linewidth=1.2, linestyle=DASHED)
        # step-wise, as average precision sums it: a point's precision holds back to the recall before it
        axes.step([0.0, *recall], [precision[0], *precision], where="pre", color=ACCENT)
        if threshold is not None:
            (_, false_positives), (missed, found) = confusion_matrix(labels_N, scores_N, threshold)
            if found:
                _mark(axes, found / (found + missed), found / (found + false_positives))
        _unit_square(axes)

    return _render(key, "Precision-recall curve", "Recall", "Precision", draw)


def roc_figure(key: str, labels_N: Array, scores_N: Array, threshold: float | None = None) -> Markup:
    """Draw the true over the false positive rate with the diagonal and the operating point.

    Args:
        key: Prefix of the ids inside the SVG, unlike any other figure's on the page.
        labels_N: 0, 1 or 255 (not measured).
        scores_N: Probabilities.
        threshold: Operating threshold to mark.
    """
    false_rate, true_rate, _ = roc_points(labels_N, scores_N)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1.2, linestyle=DASHED)
        axes.plot(false_rate, true_rate, color=ACCENT)
        if threshold is not None:
            (rejected, false_positives), (missed, found) = confusion_matrix(labels_N, scores_N, threshold)
            _mark(axes, false_positives / (false_positives + rejected), found / (found + missed))
        _unit_square(axes)

    return _render(key, "ROC curve", "False positive rate", "True positive rate", draw)


def calibration_figure(key: str, labels_N: Array, scores_N: Array) -> Markup:
    """Draw the observed rate over the mean probability of bins of equal count, with the diagonal.

    Args:
        key: Prefix of the ids inside the SVG, unlike any other figure's on the page.
        labels_N: 0, 1 or 255 (not measured).
        scores_N: Probabilities.
    """
    probability, rate, _ = calibration_points(labels_N, scores_N)

    def draw(axes: Axes) -> None:
        # Rare positives leave most of the unit square empty: show only what the bins reach.
        top = min(1.0, 1.15 * max([*probability, *rate])) or 1.0
        axes.plot([0, top], [0, top], color=QUIET, linewidth=1.2, linestyle=DASHED)
        axes.plot(probability, rate, color=ACCENT, marker="o", markersize=4.5, linewidth=1.2, clip_on=False)
        axes.set(xlim=(0, top), ylim=(0, top * 1.02))

    return _render(key, "Calibration curve", "Mean predicted probability", "Observed rate", draw)


def score_figure(key: str, labels_N: Array, scores_N: Array) -> Markup:
    """Draw how many rows of each class have which score, on a logarithmic scale.

    Args:
        key: Prefix of the ids inside the SVG, unlike any other figure's on the page.
        labels_N: 0, 1 or 255 (not measured).
        scores_N: Probabilities.
    """
    edges, negatives, positives = score_histogram(labels_N, scores_N)

    def draw(axes: Axes) -> None:
        for counts, color, name in ((negatives, QUIET, "negatives"), (positives, WARM, "positives")):
            if any(counts):
                # Down to half a row: on a logarithmic axis there is no zero, and a bin of one row is to be seen.
                axes.stairs(counts, edges, baseline=0.5, fill=True, color=color, alpha=0.28)
                axes.stairs(counts, edges, baseline=0.5, color=color, linewidth=1.4, label=name)
        axes.set(xlim=(0, 1), ylim=(0.5, 3 * max([*negatives, *positives, 1])), yscale="log")
        axes.yaxis.set_major_formatter(FuncFormatter(_short_count))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, place: ""))
        if any(negatives) or any(positives):
            axes.legend(frameon=False, ncols=2, loc="upper right", borderpad=0, handlelength=1.2, columnspacing=1.2)

    return _render(key, "Histogram of scores by class", "Predicted probability", "Rows", draw)


def history_figure(
    key: str, name: str, x: Sequence[float], y: Sequence[float], *, xlabel: str, mark_best: bool
) -> Markup:
    """Draw one quantity of the training history.

    Args:
        key: Prefix of the ids inside the SVG.
        name: What ``y`` is.
        x: Epochs or steps.
        y: Values, one for each of ``x``.
        xlabel: What ``x`` is.
        mark_best: Mark the highest value.
    """

    def draw(axes: Axes) -> None:
        # More dots would touch each other.
        dots = "o" if len(y) <= 40 else None
        axes.plot(x, y, color=ACCENT, marker=dots, markersize=3.5)
        if mark_best:
            best = max(range(len(y)), key=lambda place: y[place])
            _mark(axes, x[best], y[best])
        axes.margins(x=0.03, y=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=x[-1] > 5))
        axes.yaxis.set_major_locator(MaxNLocator(6))

    return _render(key, f"{name} by {xlabel.lower()}", xlabel, name, draw)


def _mark(axes: Axes, x: float, y: float) -> None:
    axes.plot([x], [y], "o", color=WARM, markersize=8, markeredgecolor=PAPER, markeredgewidth=1.5, clip_on=False)


def _unit_square(axes: Axes) -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=[0, 0.2, 0.4, 0.6, 0.8, 1], yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])


def _short_count(value: float, place: Any) -> str:
    """Write a power of ten in at most four characters.

    >>> [_short_count(value, None) for value in (1, 100, 10_000, 1_000_000)]
    ['1', '100', '10k', '1M']
    """
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


def _render(key: str, title: str, xlabel: str, ylabel: str, draw: Callable[[Axes], None]) -> Markup:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.7))
        axes = figure.add_subplot()
        draw(axes)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        return page_element(svg_text(figure), key, title)


def svg_text(figure: Figure) -> str:
    """Lay out a figure, drawn under ``STYLE``, and return it as the text of an SVG file."""
    # Once, in points, as SVG has them. A figure with an engine of its own is drawn twice for every file.
    FigureCanvasSVG(figure)
    figure.dpi = POINTS_PER_INCH
    ConstrainedLayoutEngine().execute(figure)
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata=NO_METADATA)
    return target.getvalue()


def page_element(svg: str, key: str, title: str) -> Markup:
    """Cut an SVG file down to an element that shares a page with others: own ids, colors of the page.

    Args:
        svg: The text of an SVG file.
        key: Prefix of the ids inside the SVG, unlike any other figure's on the page.
        title: What a screen reader says.
    """
    # Without the XML declaration and document type, which a page has already.
    svg = svg[svg.index("<svg") :].strip().removeprefix("<svg ")
    # Figures on one page must not share ids: a clip path of the first would be applied to all.
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{key}-", svg)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return Markup('<svg role="img" aria-label="{}" ').format(title) + Markup(svg)
