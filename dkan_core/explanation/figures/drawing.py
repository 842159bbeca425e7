"""A figure of an explanation as SVG and PNG, and the axes, bars and texts that several figures share."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.explanation.scales import Scale, time_ticks, written
from dkan_core.report.figures.axes import Axis, Panel, even_ticks, widened
from dkan_core.report.figures.canvas import DASHED, POINTS_PER_INCH, QUIET, Canvas
from dkan_core.report.figures.png import to_png
from dkan_core.report.figures.svg import to_svg
from dkan_core.utils.messages import brief

# As wide as the page.
WIDE = 9.4 * POINTS_PER_INCH
# A longer name beside the axis would leave less than half the width to the bars.
NAME_LENGTH = 26
BAR_HEIGHT = 0.29 * POINTS_PER_INCH
# Share of its position that a bar fills.
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
