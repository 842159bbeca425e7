"""Two axes around data: ticks at round numbers, a grid, and where a value lies on the canvas.

Lengths are points, a 72nd of an inch, from the top left corner. Shape suffix: P points.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.report.figures.canvas import (
    FONT_SIZE,
    GRID,
    Canvas,
    Points,
    text_width,
)
from dkan_core.utils.arrays import Array

# Multiples of 1.5 or 3 are left out, as they are harder to read.
STEPS = (1.0, 2.0, 2.5, 5.0)
# Distance between the axis and its tick texts, and between these and the axis label.
PAD = 5.0
# Width below which a part of a panel shows no value of its own.
HAIR = 0.25
# Height of a line of text.
LINE = 1.3 * FONT_SIZE

Ticks = Sequence[tuple[float, str]]
"""Values, and what is written at them."""


def unchanged(values: Array) -> Array:
    """Return values as they are: the scale of an even axis."""
    return values


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a panel."""

    low: float
    """The value at its left or lower end."""

    high: float
    ticks: Ticks = ()
    label: str = ""
    grid: bool = True
    forward: Callable[[Array], Array] = unchanged
    """Values to positions on a scale that the axis shows evenly."""

    angle: float = 0.0
    """Degrees by which the texts of a horizontal axis are turned."""

    def shares(self, values: Array) -> Points:
        """Return how far along the axis values lie, from 0 to 1."""
        low, high = self.forward(np.array([self.low, self.high], dtype=np.float64))
        shares: Points = (self.forward(np.asarray(values, dtype=np.float64)) - low) / ((high - low) or 1.0)
        return shares

    @property
    def room_left(self) -> float:
        """Width of the texts and label of a vertical axis."""
        widest = max((text_width(text) for _, text in self.ticks), default=-PAD)
        return widest + PAD + (LINE + PAD if self.label else 0.0)

    @property
    def room_below(self) -> float:
        """Height of the texts and label of a horizontal axis."""
        return self.texts_below + (LINE + 2 if self.label else 0.0)

    @property
    def texts_below(self) -> float:
        """Height of the texts of a horizontal axis."""
        if not self.ticks:
            return 0.0
        if self.angle:
            turned = math.sin(math.radians(self.angle))
            return PAD + max(text_width(text) for _, text in self.ticks) * turned + LINE
        return PAD + LINE * max(text.count("\n") + 1 for _, text in self.ticks)


@dataclass(frozen=True, kw_only=True)
class Box:
    """Where the data of a panel are shown; texts and labels lie outside."""

    left: float
    top: float
    right: float
    bottom: float


class Panel:
    """A box with axes, which are drawn at once; data are drawn over them.

    Args:
        canvas: Where to draw.
        box: Where on it.
        x: The horizontal axis.
        y: The vertical axis.
    """

    def __init__(self, canvas: Canvas, box: Box, x: Axis, y: Axis) -> None:
        self.canvas, self.box, self.x, self.y = canvas, box, x, y
        for (_, text), across in zip(x.ticks, self.across([value for value, _ in x.ticks]), strict=True):
            if x.grid:
                canvas.line([(across, box.top), (across, box.bottom)], GRID, width=0.8)
            middle = box.bottom + PAD + LINE / 2
            canvas.text(across, middle, text, anchor="end" if x.angle else "middle", angle=x.angle)
        for (_, text), down in zip(y.ticks, self.down([value for value, _ in y.ticks]), strict=True):
            if y.grid:
                canvas.line([(box.left, down), (box.right, down)], GRID, width=0.8)
            canvas.text(box.left - PAD, down, text, anchor="end")
        canvas.line([(box.left, box.bottom), (box.right, box.bottom)], GRID, width=0.8)
        if x.label:
            canvas.text((box.left + box.right) / 2, box.bottom + x.texts_below + LINE / 2 + 2, x.label)
        if y.label:
            canvas.text(box.left - y.room_left + LINE / 2, (box.top + box.bottom) / 2, y.label, angle=90)

    def across(self, values: Array | Sequence[float]) -> Points:
        """Return where values lie horizontally."""
        positions: Points = self.box.left + (self.box.right - self.box.left) * self.x.shares(np.asarray(values))
        return positions

    def down(self, values: Array | Sequence[float]) -> Points:
        """Return where values lie vertically."""
        positions: Points = self.box.bottom - (self.box.bottom - self.box.top) * self.y.shares(np.asarray(values))
        return positions

    def at(self, x: Array | Sequence[float], y: Array | Sequence[float]) -> Points:
        """Return where pairs of values lie on the canvas.

        Shape:
            - Input: ``(P,)`` each
            - Output: ``(P, 2)``
        """
        return np.stack([self.across(x), self.down(y)], axis=1)

    def hover(self, x: Sequence[float], texts: Sequence[str]) -> None:
        """Show a text for each of the rising ``x`` while the pointer is nearer to it than to the others."""
        across_P = self.across(np.asarray(x, dtype=np.float64))
        middles_P = (across_P[1:] + across_P[:-1]) / 2
        for left, right, text in zip([self.box.left, *middles_P], [*middles_P, self.box.right], texts, strict=True):
            # A narrower part cannot be pointed at; its neighbour shows its text.
            if right - left > HAIR:
                self.canvas.hint(float(left), self.box.top, float(right), self.box.bottom, text)

    def dot(self, x: float, y: float, color: str, *, radius: float = 2.75, rim: float = 0.0) -> None:
        """Draw a dot at a pair of values."""
        ((across, down),) = self.at([x], [y])
        self.canvas.dot(float(across), float(down), color, radius=radius, rim=rim)


def fit(canvas: Canvas, x: Axis, y: Axis, *, right: float = 12.0, top: float = 8.0) -> Panel:
    """Return a panel that fills a canvas, but for what is left free on the right and at the top."""
    box = Box(left=2 + y.room_left, top=top, right=canvas.width - right, bottom=canvas.height - 2 - x.room_below)
    return Panel(canvas, box, x, y)


def widened(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """Return the ends of an axis that leaves a share of its length free on either side."""
    room = share * (high - low) if high > low else abs(high) / 10 or 1.0
    return low - room, high + room


def even_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Return round numbers from ``low`` to ``high``, evenly spaced.

    Args:
        low: The least.
        high: The largest.
        most: Intervals between them, at most.
        whole: Whether they are to be whole numbers.

    >>> even_ticks(0.0, 1.03), even_ticks(-37.0, 3.0, 3), even_ticks(0.0, 2.0, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-30.0, -20.0, -10.0, 0.0], [0.0, 1.0, 2.0])
    """
    if not high > low:
        return [low]
    power = math.floor(math.log10((high - low) / most))
    sizes = [step * 10.0**scale for scale in (power, power + 1, power + 2) for step in STEPS]
    for step in sizes:
        # Tolerance, so that rounding does not lose the ticks at the ends.
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first <= most and (not whole or step == round(step)):
            return [float(f"{multiple * step:.12g}") for multiple in range(first, last + 1)]
    return [low, high]


def tick_texts(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return ticks with as many decimals as all of them need.

    >>> tick_texts([0.0, 0.25, -0.5]), tick_texts([0.0, 20000.0])
    ([(0.0, '0.00'), (0.25, '0.25'), (-0.5, '−0.50')], [(0.0, '0'), (20000.0, '20,000')])
    """
    largest = max(map(abs, values), default=0.0)
    decimals = next((digits for digits in range(5) if all(_has_digits(value, digits, largest) for value in values)), -1)
    # A hyphen is shorter than a minus.
    return [(v, (f"{v:,.{decimals}f}" if decimals >= 0 else f"{v:.3g}").replace("-", "−")) for v in values]


def _has_digits(value: float, digits: int, largest: float) -> bool:
    return abs(round(value, digits) - value) <= 1e-9 * largest


def even_axis(
    low: float, high: float, label: str, *, most: int = 6, whole: bool = False, grid: bool = True, share: float = 0.05
) -> Axis:
    """Return an axis over some values, with round ticks, and a little room at both ends.

    Args:
        low: The least value.
        high: The largest.
        label: What the values are.
        most: Intervals between ticks, at most.
        whole: Whether ticks are whole numbers.
        grid: Whether lines at the ticks cross the panel.
        share: How much of the axis is left free at either end.
    """
    low, high = widened(low, high, share)
    ticks = tick_texts(even_ticks(low, high, most, whole=whole))
    return Axis(low=low, high=high, ticks=ticks, label=label, grid=grid)
