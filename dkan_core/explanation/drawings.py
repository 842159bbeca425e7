"""Drawings of an explanation, in the look of the report's figures.

Every function draws on a figure of its own; ``Drawing`` renders it as SVG, for a file or a page, and as PNG.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dkan_core.explanation.curves import Curve, Point
from dkan_core.explanation.grid import Scale, written
from dkan_core.explanation.importance import Importance
from dkan_core.report.figures import ACCENT, DASHED, MUTED, PAPER, QUIET, STYLE, WARM, svg_text

# Inches, as the figures of the report: two cards fit side by side on a laptop's screen.
WIDTH, HEIGHT = 5.4, 3.7
# A longer name beside the axis would leave less than half the width to the bars.
NAME_LENGTH = 26
# PNG files are for slides: 860 pixels for the width above, sharp on half a slide.
DPI = 160
# Ticks at 1.5 or 3 are harder to read off.
STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Drawing:
    """A figure as the text of an SVG file and as the bytes of a PNG file."""

    svg: str
    png: bytes


def draw(size: tuple[float, float], paint: Callable[[Figure], None], *, png: bool = True) -> Drawing:
    """Draw a figure in the report's style.

    Args:
        size: Width and height in inches.
        paint: Draws on the figure that it is given.
        png: Whether to render a PNG as well, on a white ground; it takes as long as the SVG.
    """
    # A name with two dollars is no formula.
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        figure = Figure(figsize=size)
        paint(figure)
        svg, target = svg_text(figure), io.BytesIO()
        if png:
            # In the places that were found for the SVG.
            figure.savefig(target, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return Drawing(svg, target.getvalue())


def draw_importance(ranked: Sequence[Importance], *, png: bool = True) -> Drawing:
    """Draw the effects as bars and, where it was measured, the loss of average precision as dots next to them."""
    drops = [importance.precision_drop for importance in ranked]
    measured = [place for place, drop in enumerate(drops) if drop is not None]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if measured else 1, sharey=True, squeeze=False)[0]
        places = np.arange(len(ranked))
        effects = [importance.effect for importance in ranked]
        errors = [importance.effect_error for importance in ranked]
        panels[0].barh(places, effects, height=0.56, color=ACCENT)
        panels[0].errorbar(effects, places, xerr=errors, fmt="none", ecolor=MUTED, elinewidth=1.2)
        panels[0].set(xlabel="Effect, in log-odds", xlim=(0, None), ylim=(len(ranked) - 0.4, -0.6))
        panels[0].set_yticks(places, [short(importance.name) for importance in ranked])
        if measured:
            panels[1].axvline(0, color=QUIET, linewidth=1.2, linestyle=DASHED)
            shown = [ranked[place] for place in measured]
            panels[1].errorbar(
                [importance.precision_drop or 0.0 for importance in shown],
                measured,
                xerr=[importance.precision_drop_error or 0.0 for importance in shown],
                fmt="o",
                color=WARM,
                markersize=5.5,
                elinewidth=1.6,
            )
            panels[1].set(xlabel="Average precision lost when shuffled")
        for axes in panels:
            axes.grid(visible=False, axis="y")
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=STEPS))

    return draw((9.4 if measured else WIDTH, 0.29 * max(3, len(ranked)) + 0.8), paint, png=png)


def draw_curve(curve: Curve, label: str, *, png: bool = True) -> Drawing:
    """Draw a column's effect: a curve over its density, or one bar per level.

    Args:
        curve: The effect.
        label: The label it is an effect on.
        png: As of ``draw``.
    """
    ylabel = f"Effect on log-odds of {short(label)}"
    if curve.shape == "levels":
        return draw((WIDTH, HEIGHT), lambda figure: _paint_levels(figure.add_subplot(), curve, ylabel), png=png)
    return draw((WIDTH, HEIGHT), lambda figure: _paint_curve(figure, curve, ylabel), png=png)


def _paint_curve(figure: Figure, curve: Curve, ylabel: str) -> None:
    missing = curve.of("missing")
    grid = figure.add_gridspec(
        2, 2 if missing else 1, height_ratios=(5, 1), width_ratios=(1, 0.1) if missing else (1,), hspace=0, wspace=0.02
    )
    above = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=above)
    line = curve.of("curve")
    x = [point.value or 0.0 for point in line]
    above.axhline(0, color=QUIET, linewidth=1.2, linestyle=DASHED)
    above.fill_between(
        x, [point.low for point in line], [point.high for point in line], color=ACCENT, alpha=0.16, linewidth=0
    )
    above.plot(x, [point.mean for point in line], color=ACCENT, marker="o" if len(line) <= 24 else None, markersize=3.2)
    for mark in departing_marks(curve):
        _whisker(above, mark.value or 0.0, mark)
    above.set(ylabel=ylabel)
    above.tick_params(labelbottom=False)
    scale_axis(below, "x", Scale(curve.scale, curve.scale_width), x + [mark.value or 0.0 for mark in curve.of("mark")])
    _paint_density(below, curve)
    below.set(xlabel=short(curve.name, 48))
    if missing:
        side = figure.add_subplot(grid[0, 1], sharey=above)
        side.axhline(0, color=QUIET, linewidth=1.2, linestyle=DASHED)
        _whisker(side, 0.0, missing[0])
        side.set(xlim=(-1, 1))
        share = missing[0].rows / sum(point.rows for point in curve.points)
        side.set_xticks([0], [f"missing\n{percent(share)}"])
        side.tick_params(labelleft=False)
        side.grid(visible=False, axis="x")


def _whisker(axes: Axes, x: float, point: Point) -> None:
    axes.plot([x, x], [point.low, point.high], color=WARM, linewidth=1.3, alpha=0.55)
    axes.plot([x], [point.mean], "o", color=WARM, markersize=5.5, markeredgecolor=PAPER, markeredgewidth=1)


def departing_marks(curve: Curve) -> list[Point]:
    """Return the frequent values whose effect departs from the curve around them."""
    line = curve.of("curve")
    x, means = np.array([point.value for point in line]), np.array([point.mean for point in line])
    # Nearer marks cannot be told from the curve in the figure (8% of its height), or do not matter (5% in the odds).
    limit = max(0.05, 0.08 * float(np.ptp(means))) if len(line) else 0.0
    return [
        mark
        for mark in curve.of("mark")
        if mark.value is not None and abs(mark.mean - float(np.interp(mark.value, x, means))) > limit
    ]


def scale_axis(axes: Axes, which: Literal["x", "y"], scale: Scale, values: Sequence[float]) -> None:
    """Give one axis a column's scale and ticks as a person writes them.

    Args:
        axes: Where to draw.
        which: The axis.
        scale: The column's.
        values: Numbers that the axis shows; whole ones get whole ticks.
    """
    axis, set_scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    if scale.kind == "asinh":
        set_scale("asinh", linear_width=scale.width)
        axis.set_major_locator(FixedLocator(_round_ticks(min(values), max(values), scale.width)))
        axis.set_minor_locator(NullLocator())
    elif scale.kind == "log":
        set_scale("log")
    else:
        axis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=all(value == round(value) for value in values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _round_ticks(low: float, high: float, width: float) -> list[float]:
    """Return zero and powers of ten beyond the part of the axis that is linear.

    >>> _round_ticks(0.0, 99_999.0, 1500.0)
    [0.0, 10000.0, 100000.0]
    """
    powers = [10.0**power for power in range(-12, 13) if 10.0**power > width]
    ticks = sorted({0.0, *powers, *(-power for power in powers)})
    return [tick for tick in ticks if 1.02 * min(low, 0) <= tick <= 1.02 * high]


def _paint_density(axes: Axes, curve: Curve) -> None:
    edges, counts = np.array(curve.density["edges"]), np.array(curve.density["counts"])
    shares = counts / max(1, sum(point.rows for point in curve.points))
    # One or two bins with most of the rows, as at zero, would flatten all others: they are cut off at four times the
    # third, and their share is written next to them.
    top = float(min(shares.max(), 4 * np.sort(shares)[-3:][0])) or float(shares.max()) or 1.0
    axes.stairs(np.minimum(shares, top), edges, fill=True, color=QUIET, alpha=0.55)
    for place in np.flatnonzero(shares > 1.001 * top):
        middle = (edges[place] + edges[place + 1]) / 2
        axes.annotate(
            percent(float(shares[place])),
            (middle, top),
            xytext=(6, 0),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
        )
    axes.set(ylim=(0, 1.05 * top), yticks=[])
    axes.set_ylabel("rows", fontsize=8.5)
    axes.grid(visible=False)


def _paint_levels(axes: Axes, curve: Curve, xlabel: str) -> None:
    numeric = all(point.value is not None for point in curve.of("level"))
    levels = curve.of("level") if numeric else sorted(curve.of("level"), key=lambda point: -point.mean)
    points = levels + curve.of("missing")
    axes.axvline(0, color=QUIET, linewidth=1.2, linestyle=DASHED)
    for place, point in enumerate(points):
        color = WARM if point.role == "missing" else ACCENT
        axes.barh(place, point.mean, height=0.5, color=color, alpha=0.3)
        axes.plot([point.low, point.high], [place, place], color=color, linewidth=1.5, alpha=0.7)
        axes.plot([point.mean], [place], "o", color=color, markersize=5.5, markeredgecolor=PAPER, markeredgewidth=1)
        axes.text(
            1.02, place, f"{point.rows:,}", transform=axes.get_yaxis_transform(), va="center", ha="left", fontsize=8.5
        )
    # Bars are as thick as with six levels, however few there are.
    room = max(0.0, (6 - len(points)) / 4)
    axes.text(1.02, 1.0, "rows", transform=axes.transAxes, va="bottom", ha="left", fontsize=8.5)
    axes.set(ylim=(len(points) - 0.4 + room, -0.6 - room), xlabel=xlabel, ylabel=short(curve.name, 40))
    axes.set_yticks(range(len(points)), [short(point.name) for point in points])
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS))


def short(text: str, length: int = NAME_LENGTH) -> str:
    """Cut a long name.

    >>> short("a" * 40, 5)
    'aaaa…'
    """
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.917), percent(0.0004), percent(0.05)
    ('92%', '<0.1%', '5.0%')
    """
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
