"""A figure as a list of marks, before it is an SVG or a PNG file.

Our figures have some hundred marks at known positions. A plotting library takes half a second to import and a quarter
of a CPU second for each figure; this takes milliseconds.

Lengths are points, a 72nd of an inch, from the top left corner. Shape suffix: P points.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dkan_core.utils.arrays import Array
from dkan_core.utils.messages import brief

# Colors of the figures; in a page, each is replaced by a variable of report.css.
MUTED, GRID, ACCENT, WARM, QUIET, PAPER = "#64707f", "#e4e8ed", "#2460a7", "#c8692b", "#9aa6b4", "#fefefe"
POINTS_PER_INCH = 72
# Of most figures: two cards fit side by side on a laptop's screen.
CARD_WIDTH, CARD_HEIGHT = 5.4 * POINTS_PER_INCH, 3.7 * POINTS_PER_INCH
FONT_SIZE, SMALL_SIZE = 9.5, 8.5
DASHED = (4.0, 3.0)
# Characters of a line of a hint: values may be texts of any length.
HINT_LENGTH = 160
# Narrow and wide characters of DejaVu Sans. Widths are in ems, rounded up: the reader's font in a page is narrower.
NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW%@")

Points = npt.NDArray[np.float64]
"""Positions ``(P, 2)`` as x and y."""

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points."""

    points_P2: Points
    color: str
    width: float
    dash: tuple[float, float] | None
    opacity: float


@dataclass(frozen=True, kw_only=True)
class Area:
    """A filled polygon."""

    points_P2: Points
    color: str
    opacity: float
    crisp: bool
    """Whether its edges are not smoothed, for rectangles whose neighbours should show no seam."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A filled circle, with a rim in the background color that sets it off from marks below."""

    x: float
    y: float
    radius: float
    color: str
    rim: float


@dataclass(frozen=True, kw_only=True)
class Text:
    """One line of text; ``y`` is its middle."""

    x: float
    y: float
    text: str
    size: float
    anchor: Anchor
    angle: float
    """Degrees, counter-clockwise."""

    @property
    def baseline(self) -> float:
        """Position of the baseline, before the text is turned."""
        return self.y + 0.36 * self.size


@dataclass(frozen=True, kw_only=True)
class Hint:
    """A text that a page shows while the pointer is over a rectangle; nothing is painted."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


Mark = Line | Area | Dot | Text | Hint


@dataclass(frozen=True)
class Canvas:
    """Marks drawn so far, the lowest first."""

    width: float
    height: float
    marks: list[Mark] = field(default_factory=list)

    def line(
        self,
        points_P2: Points | Sequence[tuple[float, float]],
        color: str,
        *,
        width: float = 1.8,
        dash: tuple[float, float] | None = None,
        opacity: float = 1.0,
    ) -> None:
        """Draw a line through points."""
        self.marks.append(
            Line(points_P2=np.asarray(points_P2), color=color, width=width, dash=dash, opacity=opacity),
        )

    def area(
        self,
        points_P2: Points | Sequence[tuple[float, float]],
        color: str,
        *,
        opacity: float = 1.0,
        crisp: bool = False,
    ) -> None:
        """Fill a polygon."""
        self.marks.append(Area(points_P2=np.asarray(points_P2), color=color, opacity=opacity, crisp=crisp))

    def dot(self, x: float, y: float, color: str, *, radius: float = 2.75, rim: float = 0.0) -> None:
        """Draw a circle with a rim of ``rim`` points."""
        self.marks.append(Dot(x=x, y=y, color=color, radius=radius, rim=rim))

    def text(
        self, x: float, y: float, text: str, *, size: float = FONT_SIZE, anchor: Anchor = "middle", angle: float = 0.0
    ) -> None:
        """Write one line, or several that are parted by line ends, each below the last."""
        for number, line in enumerate(text.split("\n")):
            self.marks.append(
                Text(x=x, y=y + 1.2 * size * number, text=line, size=size, anchor=anchor, angle=angle),
            )

    def hint(self, left: float, top: float, right: float, bottom: float, text: str) -> None:
        """Show a text while the pointer is over a rectangle; long lines of it are cut."""
        lines = [brief(line, HINT_LENGTH) for line in text.split("\n")]
        self.marks.append(Hint(left=left, top=top, right=right, bottom=bottom, text="\n".join(lines)))


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """Return about how wide a text is, rather too much than too little.

    >>> text_width("", 10.0), round(text_width("ab1", 10.0), 1)
    (0.0, 18.9)
    """
    return size * sum(map(_ems, text))


def _ems(character: str) -> float:
    if character in NARROW:
        return 0.38
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.98 if character in WIDE else 0.7 if character.isupper() else 0.63


def steps(edges: Array, heights: Array, base: float) -> Points:
    """Return the outline of a histogram from and back to its base.

    Args:
        edges: Ends of the bins, one more than there are bins.
        heights: Of the bins.
        base: Where bins start.
    """
    sides = np.repeat(np.asarray(edges, dtype=np.float64), 2)
    tops = np.concatenate([[base], np.repeat(np.asarray(heights, dtype=np.float64), 2), [base]])
    return np.stack([sides, tops], axis=1)
