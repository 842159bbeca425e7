"""Curves as figures: a line or bars, with band, spread of the rows, where the rows are, and an earlier model's curve.

Pointing at a value shows its description.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dkan_core.explanation.curves import Curve, Point
from dkan_core.explanation.figures.drawing import (
    LEVEL_SHARE,
    Drawing,
    levels_axis,
    paint_bar,
    percent,
    scaled_axis,
    short,
    zero_line,
)
from dkan_core.explanation.scales import Scale
from dkan_core.report.evaluation import FEW_ROWS
from dkan_core.report.figures.axes import Axis, Box, Panel, even_axis, fit
from dkan_core.report.figures.canvas import (
    ACCENT,
    CARD_HEIGHT,
    CARD_WIDTH,
    DASHED,
    MUTED,
    QUIET,
    SMALL_SIZE,
    WARM,
    Canvas,
    steps,
    text_width,
)

DENSITY_HEIGHT, MISSING_WIDTH = 36.0, 44.0
# Characters of a value's name beside a curve.
BESIDE_LENGTH = 10
# The band shows how certain the curve is and stands out; the spread of the rows lies behind it.
BAND_OPACITY, SPREAD_OPACITY = 0.3, 0.1
# Radius in which a dot shows its description, so that fingers and unsteady hands find it.
DOT_REACH = 5.0


def draw_curve(curve: Curve, label: str, earlier: Curve | None = None) -> Drawing:
    """Draw a column's effect: a curve over its density, or one bar per level.

    Args:
        curve: The effect.
        label: The label it is an effect on.
        earlier: The effect in an earlier model, drawn dashed on the same axes.
    """
    canvas = Canvas(CARD_WIDTH, CARD_HEIGHT)
    draw = _draw_levels if curve.shape == "levels" else _draw_curve
    # Without an earlier model there is nothing of it to draw.
    draw(canvas, curve, f"Effect on log-odds of {short(label)}", earlier or replace(curve, points=[]))
    return Drawing(canvas)


def _draw_curve(canvas: Canvas, curve: Curve, text: str, earlier: Curve) -> None:
    line, near = curve.of("curve"), [mark for mark in curve.of("mark") if not _is_apart(mark, curve)]
    marks = [mark for mark in departing_marks(curve) if mark in near]
    beside = [point for point in curve.of("mark", "missing") if point not in near]
    before, before_marks = earlier_line(curve, earlier), earlier_marks(curve, earlier)
    before_beside = {point.name: point for point in earlier.of("mark", "missing")}
    shown_before = [before_beside[point.name] for point in beside if point.name in before_beside]
    y = even_axis(*_ends([*line, *beside, *marks], [*before, *shown_before, *before_marks]), text)
    values = [point.value or 0.0 for point in [*line, *near]]
    x = scaled_axis(Scale(curve.scale, curve.scale_width), values, short(curve.name, 48))
    # Half of the last tick's text may reach beyond the axis.
    beyond = max((text_width(text) / 2 for _, text in x.ticks[-1:]), default=0.0)
    left, right = 2 + y.room_left, canvas.width - (MISSING_WIDTH * len(beside) or max(12, beyond))
    bottom = canvas.height - 2 - x.room_below
    middle = bottom - DENSITY_HEIGHT
    above = Panel(canvas, Box(left=left, top=8, right=right, bottom=middle), _without_texts(x), y)
    zero_line(above)
    if before:
        canvas.line(above.at([p.value or 0.0 for p in before], [p.mean for p in before]), MUTED, dash=DASHED)
    _paint_line(above, line)
    for mark in before_marks:
        above.dot(mark.value or 0.0, mark.mean, MUTED, radius=2.4)
    for mark in marks:
        _whisker(above, mark.value or 0.0, mark)
    _draw_density(canvas, Box(left=left, top=middle, right=right, bottom=bottom), curve, x)
    _hint_along(above, curve, bottom, marks, [*before, *before_marks])
    for position, point in enumerate(beside):
        edge = right + 2 + position * MISSING_WIDTH
        box = Box(left=edge, top=8, right=edge + MISSING_WIDTH - 4, bottom=middle)
        _draw_beside(canvas, box, _without_texts(y), curve, point, before_beside.get(point.name))


def _paint_line(panel: Panel, line: Sequence[Point]) -> None:
    """Draw a curve over the spread of the rows and its band, with dots where there is room for them."""
    positions = [point.value or 0.0 for point in line]
    _paint_between(panel, positions, [point.low for point in line], [point.high for point in line], SPREAD_OPACITY)
    bands = [point.band for point in line if point.band is not None]
    if bands:
        _paint_between(panel, positions, [low for low, _ in bands], [high for _, high in bands], BAND_OPACITY)
    panel.canvas.line(panel.at(positions, [point.mean for point in line]), ACCENT)
    if len(line) <= 24:
        for position, point in zip(positions, line, strict=True):
            panel.dot(position, point.mean, ACCENT, radius=1.6)


def _is_apart(mark: Point, curve: Curve) -> bool:
    """Return whether a value, such as -999 for unknown, is so far away that an axis with it would squeeze the curve."""
    values = [point.value or 0.0 for point in curve.of("curve")]
    span, value = max(values) - min(values), mark.value or 0.0
    return value < min(values) - span or value > max(values) + span


def _draw_beside(canvas: Canvas, box: Box, y: Axis, curve: Curve, point: Point, before: Point | None) -> None:
    """Draw points that are not on the curve: rows without a value, or with a value that stands for unknown."""
    share = percent(point.rows / sum(each.rows for each in curve.points))
    panel = Panel(
        canvas, box, Axis(low=-1, high=1, ticks=[(0, f"{short(point.name, BESIDE_LENGTH)}\n{share}")], grid=False), y
    )
    zero_line(panel)
    if before is not None:
        canvas.line(panel.at([-0.6, 0.6], [before.mean] * 2), MUTED, dash=(2.0, 2.0))
    _whisker(panel, 0.0, point)
    told = describe_point(curve, point, None if before is None else before.mean)
    canvas.hint(box.left, box.top, box.right, canvas.height, told)


def earlier_line(curve: Curve, earlier: Curve) -> list[Point]:
    """Return the points of an earlier model's curve that lie on the axis of a curve."""
    return _on_axis(earlier.of("curve", "level"), curve)


def _on_axis(points: Sequence[Point], curve: Curve) -> list[Point]:
    values = [point.value for point in curve.points if point.value is not None]
    return [point for point in points if point.value is not None and min(values) <= point.value <= max(values)]


def earlier_marks(curve: Curve, earlier: Curve) -> list[Point]:
    """Return an earlier model's effects of the frequent values that depart from either curve, and lie on the axis."""
    shown = {point.value for point in (*departing_marks(curve), *departing_marks(earlier))}
    marks = _on_axis(earlier.of("mark"), curve)
    return [point for point in marks if point.value in shown and not _is_apart(point, curve)]


def describe_point(curve: Curve, point: Point, before: float | None = None) -> str:
    """Describe what a point shows: its value, effect, that of an earlier model, band, spread and rows."""
    total = curve.hidden_rows + sum(each.rows for each in curve.points)
    lines = [
        f"{curve.name} is missing" if point.role == "missing" else f"{curve.name} = {point.name}",
        f"effect {point.mean:+.3f}",
    ]
    if before is not None:
        lines.append(f"in the earlier model {before:+.3f}")
    if point.band is not None:
        lines.append(f"90% band {point.band[0]:+.3f} to {point.band[1]:+.3f}")
    if point.low < point.high:
        lines.append(f"80% of rows {point.low:+.3f} to {point.high:+.3f}")
    lines.append(f"{point.rows:,} rows ({percent(point.rows / max(1, total))})")
    return "\n".join(lines)


def _ends(points: Sequence[Point], earlier: Sequence[Point]) -> tuple[float, float]:
    """Return the least and the largest value that a figure shows, zero among them."""
    bands = [end for point in points for end in point.band or ()]
    means = [point.mean for point in earlier]
    lows, highs = [point.low for point in points], [point.high for point in points]
    return min(0.0, *lows, *bands, *means), max(0.0, *highs, *bands, *means)


def _paint_between(
    panel: Panel, positions: Sequence[float], low: Sequence[float], high: Sequence[float], opacity: float
) -> None:
    corners = panel.at([*positions, *positions[::-1]], [*low, *high[::-1]])
    panel.canvas.area(corners, ACCENT, opacity=opacity)


def _hint_along(panel: Panel, curve: Curve, bottom: float, marks: Sequence[Point], earlier: Sequence[Point]) -> None:
    """Describe each point of the line in a strip as wide as it reaches, and each mark around its dot."""
    line, box = curve.of("curve"), panel.box
    before = {(point.role == "mark", point.value): point.mean for point in earlier}
    across = panel.across([point.value or 0.0 for point in line])
    ends = [box.left, *((across[1:] + across[:-1]) / 2).tolist(), box.right]
    for point, left, right in zip(line, ends, ends[1:], strict=False):
        panel.canvas.hint(left, box.top, right, bottom, describe_point(curve, point, before.get((False, point.value))))
    for mark in marks:
        ((x, y),) = panel.at([mark.value or 0.0], [mark.mean]).tolist()
        text = describe_point(curve, mark, before.get((True, mark.value)))
        panel.canvas.hint(x - DOT_REACH, y - DOT_REACH, x + DOT_REACH, y + DOT_REACH, text)


def _draw_density(canvas: Canvas, box: Box, curve: Curve, x: Axis) -> None:
    edges, counts = np.array(curve.density["edges"]), np.array(curve.density["counts"])
    shares = counts / max(1, sum(point.rows for point in curve.points))
    # One or two bins with most of the rows, such as zeros, would flatten all others: bars are cut off at four times the
    # third highest one, and the share of the bin is written next to it.
    top = float(min(shares.max(), 4 * np.sort(shares)[-3:][0])) or float(shares.max()) or 1.0
    panel = Panel(canvas, box, x, Axis(low=0.0, high=1.05 * top))
    outline_P2 = steps(edges, np.minimum(shares, top), 0.0)
    points_P2 = panel.at(outline_P2[:, 0], outline_P2[:, 1])
    # The first and last bins may reach beyond the axis.
    points_P2[:, 0] = points_P2[:, 0].clip(box.left, box.right)
    canvas.area(points_P2, QUIET, opacity=0.55)
    canvas.text(box.left - 12, (box.top + box.bottom) / 2, "rows", size=SMALL_SIZE, angle=90)
    for position in np.flatnonzero(shares > 1.001 * top):
        across = float(panel.across([(edges[position] + edges[position + 1]) / 2])[0])
        text = percent(float(shares[position]))
        beyond = across + 6 + text_width(text, SMALL_SIZE) > box.right
        # Written beside the bar, on the side with room.
        text_x = across - 6 if beyond else across + 6
        canvas.text(text_x, box.top + 6, text, size=SMALL_SIZE, anchor="end" if beyond else "start")


def _draw_levels(canvas: Canvas, curve: Curve, text: str, earlier: Curve) -> None:
    numeric = all(point.value is not None for point in curve.of("level"))
    levels = curve.of("level") if numeric else sorted(curve.of("level"), key=lambda point: -point.mean)
    points = levels + curve.of("missing")
    before = {point.name: point for point in earlier.points}
    shown_before = [before[point.name] for point in points if point.name in before]
    # With fewer than six levels, bars are as thick as with six.
    room = max(0.0, (6 - len(points)) / 4)
    y = levels_axis([short(point.name) for point in points], short(curve.name, 40), room)
    counts = [f"{point.rows:,}" for point in points]
    right = max(text_width(count, SMALL_SIZE) for count in counts) + 10
    panel = fit(canvas, even_axis(*_ends(points, shown_before), text), y, right=max(right, 34.0), top=20)
    zero_line(panel, vertical=True)
    for position, point in enumerate(points):
        known = WARM if point.role == "missing" else ACCENT
        color = known if point.rows >= FEW_ROWS else QUIET
        paint_bar(panel, position, point.mean, color, LEVEL_SHARE, opacity=0.3)
        canvas.line(panel.at([point.low, point.high], [position, position]), color, width=1.2, opacity=0.5)
        if point.band is not None:
            canvas.line(panel.at(point.band, [position, position]), color, width=4.0, opacity=0.55)
        if point.name in before:
            ends = [position - LEVEL_SHARE / 1.4, position + LEVEL_SHARE / 1.4]
            canvas.line(panel.at([before[point.name].mean] * 2, ends), MUTED, width=1.6, dash=(2.0, 2.0))
        panel.dot(point.mean, position, color, rim=1)
        down = float(panel.down([position])[0])
        canvas.text(panel.box.right + 6, down, counts[position], size=SMALL_SIZE, anchor="start")
        top, bottom = panel.down([position - 0.5, position + 0.5]).tolist()
        was = before[point.name].mean if point.name in before else None
        canvas.hint(0.0, top, canvas.width, bottom, describe_point(curve, point, was))
    canvas.text(panel.box.right + 6, panel.box.top - 8, "rows", size=SMALL_SIZE, anchor="start")


def _without_texts(axis: Axis) -> Axis:
    return replace(axis, ticks=[(value, "") for value, _ in axis.ticks], label="")


def _whisker(panel: Panel, x: float, point: Point) -> None:
    panel.canvas.line(panel.at([x, x], [point.low, point.high]), WARM, width=1.1, opacity=0.5)
    if point.band is not None:
        panel.canvas.line(panel.at([x, x], point.band), WARM, width=3.0, opacity=0.5)
    panel.dot(x, point.mean, WARM, rim=1)


def departing_marks(curve: Curve) -> list[Point]:
    """Return the frequent values whose effect departs from the curve around them, and those beyond its ends."""
    line = curve.of("curve")
    x, means = np.array([point.value for point in line]), np.array([point.mean for point in line])
    # Smaller departures are invisible in the figure (8% of its height), or do not matter (5% in the odds).
    limit = max(0.05, 0.08 * float(np.ptp(means))) if len(line) else 0.0
    return [
        mark
        for mark in curve.of("mark")
        if mark.value is not None
        and abs(mark.mean - float(np.interp(mark.value, x, means, left=np.inf, right=np.inf))) > limit
    ]
