"""Drawings of an explanation, in the look of the report's figures.

Every function draws on a canvas of its own; ``Drawing`` has it as SVG, for a file or a page, and as PNG.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.explanation.importance import Importance
from dkan_core.explanation.scales import Scale, time_ticks, written
from dkan_core.report.figures.axes import Axis, Box, Panel, even_axis, even_ticks, tick_texts, widened
from dkan_core.report.figures.canvas import (
    ACCENT,
    DASHED,
    MUTED,
    POINTS_PER_INCH,
    QUIET,
    WARM,
    Canvas,
)
from dkan_core.report.figures.png import to_png
from dkan_core.report.figures.svg import to_svg
from dkan_core.utils.hints import brief

# As the figures of the report: two cards fit side by side on a laptop's screen.
WIDTH, HEIGHT = 5.4 * POINTS_PER_INCH, 3.7 * POINTS_PER_INCH
WIDE = 9.4 * POINTS_PER_INCH
# A longer name beside the axis would leave less than half the width to the bars.
NAME_LENGTH = 26
BAR_HEIGHT = 0.29 * POINTS_PER_INCH
# Of importances: the table beneath has them all, and what follows is not pages away.
MAX_BARS = 40
# Share of a bar's room that the bar takes.
BAR_SHARE, LEVEL_SHARE = 0.56, 0.5


@dataclass(frozen=True)
class Drawing:
    """A figure as the text of an SVG file and as the bytes of a PNG file, each made when it is asked for."""

    canvas: Canvas

    @functools.cached_property
    def svg(self) -> str:
        """The text of an SVG file."""
        return to_svg(self.canvas)

    @property
    def png(self) -> bytes:
        """The bytes of a PNG file, on a white ground."""
        return to_png(self.canvas)


def draw_importance(ranked: Sequence[Importance], *, wide: bool = False) -> Drawing:
    """Draw the effects as bars and, where it was measured, the loss of average precision as dots next to them.

    Args:
        ranked: The importances.
        wide: Whether the figure is as wide as the page also where no loss was measured.
    """
    measured = any(importance.precision_drop is not None for importance in ranked)
    canvas = Canvas(WIDE if measured or wide else WIDTH, BAR_HEIGHT * max(3, len(ranked)) + 54)
    names = levels_axis([short(importance.name) for importance in ranked])
    ends = [importance.effect + importance.effect_error for importance in ranked]
    high = 1.05 * max(ends) or 1.0
    effects = Axis(low=0.0, high=high, ticks=tick_texts(even_ticks(0.0, high, 5)), label="Effect, in log-odds")
    left, bottom = 2 + names.room_left, canvas.height - 2 - effects.room_below
    right = (left + canvas.width) / 2 - 12 if measured else canvas.width - 12
    panel = Panel(canvas, Box(left=left, top=8, right=right, bottom=bottom), effects, names)
    for position, importance in enumerate(ranked):
        paint_bar(panel, position, importance.effect, ACCENT, BAR_SHARE)
        error = importance.effect_error
        spread = [importance.effect - error, importance.effect + error]
        canvas.line(panel.at(spread, [position, position]), MUTED, width=1.2)
        top, bottom = panel.down([position - 0.5, position + 0.5]).tolist()
        canvas.hint(0.0, top, canvas.width, bottom, _described(importance))
    if measured:
        _draw_drops(canvas, Box(left=right + 24, top=8, right=canvas.width - 12, bottom=bottom), ranked)
    return Drawing(canvas)


def _described(importance: Importance) -> str:
    """Describe what a bar shows."""
    text = f"{importance.name}\neffect {importance.effect:.3f} ± {importance.effect_error:.3f}"
    if importance.precision_drop is not None:
        text += (
            f"\naverage precision lost {importance.precision_drop:.4f} ± {importance.precision_drop_error or 0.0:.4f}"
        )
    return text


def _draw_drops(canvas: Canvas, box: Box, ranked: Sequence[Importance]) -> None:
    drops = [
        (position, importance.precision_drop, importance.precision_drop_error or 0.0)
        for position, importance in enumerate(ranked)
        if importance.precision_drop is not None
    ]
    low, high = min(drop - error for _, drop, error in drops), max(drop + error for _, drop, error in drops)
    axis = even_axis(min(low, 0.0), max(high, 0.0), "Average precision lost when shuffled", most=5)
    panel = Panel(canvas, box, axis, levels_axis([""] * len(ranked)))
    zero_line(panel, vertical=True)
    for position, drop, error in drops:
        canvas.line(panel.at([drop - error, drop + error], [position, position]), WARM, width=1.6)
        panel.dot(drop, position, WARM)


def levels_axis(names: Sequence[str], label: str = "", room: float = 0.0) -> Axis:
    """Return a vertical axis of levels, the first one on top."""
    low, high = len(names) - 0.4 + room, -0.6 - room
    return Axis(low=low, high=high, ticks=[*enumerate(names)], label=label, grid=False)


def paint_bar(
    panel: Panel, position: float, value: float, color: str, share: float, *, start: float = 0.0, opacity: float = 1.0
) -> None:
    """Draw a bar that takes a share of the room of its position."""
    low, high = position - share / 2, position + share / 2
    panel.canvas.area(panel.at([start, value, value, start], [low, low, high, high]), color, opacity=opacity)


def zero_line(panel: Panel, *, vertical: bool = False) -> None:
    """Draw where an effect is zero."""
    if vertical:
        zero_P2 = panel.at([0, 0], [panel.y.low, panel.y.high])
    else:
        zero_P2 = panel.at([panel.x.low, panel.x.high], [0, 0])
    panel.canvas.line(zero_P2, QUIET, width=1.2, dash=DASHED)


def scaled_axis(scale: Scale, values: Sequence[float], label: str, *, room: float = 0.05) -> Axis:
    """Return an axis with a column's scale, and ticks as a person writes them.

    Args:
        scale: The column's.
        values: Numbers that the axis shows; whole ones get whole ticks.
        label: The column's name.
        room: Share of its length that is left free at either end.
    """
    low, high = min(values), max(values)
    first, last = scale.forward(np.array([low, high])).tolist()
    ends = scale.inverse(np.array(widened(first, last, room))).tolist()
    if scale.kind == "time":
        return Axis(low=ends[0], high=ends[1], ticks=time_ticks(*ends), label=label)
    if scale.kind == "linear":
        ticks = even_ticks(*ends, whole=all(value == round(value) for value in values))
    else:
        ticks = _round_ticks(low, high, scale.width if scale.kind == "asinh" else 0.0)
    shown = [(tick, written(tick)) for tick in ticks]
    return Axis(low=ends[0], high=ends[1], ticks=shown, label=label, forward=scale.forward)


def _round_ticks(low: float, high: float, width: float) -> list[float]:
    """Return powers of ten and, with a width, zero and powers of ten beyond the part of the axis that is linear.

    >>> _round_ticks(0.0, 99_999.0, 1500.0), _round_ticks(0.9, 200.0, 0.0)
    ([0.0, 10000.0, 100000.0], [1.0, 10.0, 100.0])
    """
    powers = [10.0**power for power in range(-12, 13) if 10.0**power > width]
    ticks = sorted({0.0, *powers, *(-power for power in powers)}) if width else powers
    return [tick for tick in ticks if (1.02 * min(low, 0) if width else 0.98 * low) <= tick <= 1.02 * high]


def short(text: str, length: int = NAME_LENGTH) -> str:
    """Cut a long name.

    >>> short("a" * 40, 5)
    'aaaa…'
    """
    return brief(" ".join(text.split()), length)


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.917), percent(0.0004), percent(0.05)
    ('92%', '<0.1%', '5.0%')
    """
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
