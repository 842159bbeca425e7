"""Heat maps of what two columns do together, in the look of the report's figures.

Pointing at a cell shows its description.
"""

from dataclasses import dataclass, replace

import numpy as np

from dkan_core.explanation.figures.drawing import Drawing, percent, scaled_axis, short
from dkan_core.explanation.interactions import PairAxis, PairMap
from dkan_core.report.figures.axes import Axis, Box, Panel, even_ticks, tick_texts
from dkan_core.report.figures.canvas import ACCENT, MUTED, POINTS_PER_INCH, WARM, Canvas
from dkan_core.utils.arrays import Array, Float64

WIDTH, HEIGHT = 9.8 * POINTS_PER_INCH, 3.9 * POINTS_PER_INCH
# About 32 characters fit below the axis of a map; with more, names would overlap.
NAMES_BELOW = 32
# The key: its distance from the map, its width, and the room for its numbers.
KEY_GAP, KEY_WIDTH, KEY_ROOM = 10.0, 10.0, 54.0
KEY_STEPS = 41


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """A cell of a heat map."""

    row: int
    """Bin of the first column."""

    col: int
    """Bin of the second column."""

    first: str
    second: str
    """Their values in words."""

    joint: float
    own: float
    rows: int
    share: float
    """Of all rows in the map."""

    joint_error: float | None = None
    own_error: float | None = None
    """Standard errors, where they are known."""


def map_cells(pair: PairMap) -> list[MapCell]:
    """Return the cells of a map, row by row."""
    total = max(1, sum(map(sum, pair.rows)))
    return [
        MapCell(
            row=row,
            col=col,
            first=_in_words(pair.first, row),
            second=_in_words(pair.second, col),
            joint=pair.joint[row][col],
            own=pair.own[row][col],
            rows=pair.rows[row][col],
            share=pair.rows[row][col] / total,
            joint_error=pair.joint_error[row][col] if pair.joint_error else None,
            own_error=pair.own_error[row][col] if pair.own_error else None,
        )
        for row, col in np.ndindex(len(pair.first.names), len(pair.second.names))
    ]


def _in_words(side: PairAxis, index: int) -> str:
    """Name a bin: the value that stands for it, and what it reaches from and to."""
    reach = side.ranges[index] if side.ranges else ""
    return f"{side.names[index]} ({reach})" if reach else side.names[index]


def with_error(effect: float, error: float | None) -> str:
    """Write an effect with its standard error, where that is known.

    >>> with_error(0.5, 0.0123), with_error(-1.0, None)
    ('+0.500 ± 0.012', '-1.000')
    """
    return f"{effect:+.3f}" if error is None else f"{effect:+.3f} ± {error:.3f}"


def describe_cell(pair: PairMap, cell: MapCell) -> str:
    """Describe what a cell shows."""
    return "\n".join(
        [
            f"{pair.first.name} = {cell.first}",
            f"{pair.second.name} = {cell.second}",
            f"both together {with_error(cell.joint, cell.joint_error)}",
            f"beyond the sum of the two {with_error(cell.own, cell.own_error)}",
            f"{cell.rows:,} rows ({percent(cell.share)})" if cell.rows else "no rows",
        ]
    )


def draw_map(pair: PairMap) -> Drawing:
    """Draw the effect of a pair, and beside it the part that is not the sum of both columns' own effects."""
    canvas = Canvas(WIDTH, HEIGHT)
    x, y = _axis(pair.second), _axis(pair.first)
    if not pair.second.edges and max(map(len, pair.second.names)) * len(pair.second.names) > NAMES_BELOW:
        x = replace(x, angle=40)
    half, left = WIDTH / 2, 2 + y.room_left
    for index, (values, title) in enumerate(
        ((pair.joint, "Both together"), (pair.own, "Beyond the sum of the two alone"))
    ):
        box = Box(
            left=left + index * half,
            top=22,
            right=(index + 1) * half - KEY_GAP - KEY_WIDTH - KEY_ROOM,
            bottom=HEIGHT - 2 - x.room_below,
        )
        canvas.text(box.left, 10, title, anchor="start")
        # Each map has its own color range: the part beyond the sum is often ten times smaller.
        _paint(Panel(canvas, box, x, y), np.array(values), np.array(pair.rows), pair)
        _paint_key(canvas, box, float(np.abs(values).max()))
    return Drawing(canvas)


def _axis(side: PairAxis) -> Axis:
    if side.edges:
        axis = scaled_axis(side.on_axis, [side.edges[0], side.edges[-1]], short(side.name, 40), room=0.0)
        return replace(axis, grid=False)
    ticks = [(index, short(name, 20)) for index, name in enumerate(side.names)]
    return Axis(low=-0.5, high=len(side.names) - 0.5, ticks=ticks, label=short(side.name, 40), grid=False)


def _paint(panel: Panel, values_AB: Float64, rows_AB: Array, pair: PairMap) -> None:
    across, down = panel.across(_edges(pair.second)).tolist(), panel.down(_edges(pair.first)).tolist()
    limit = float(np.abs(values_AB).max())
    for row, col in np.ndindex(values_AB.shape):
        corners = (across[col], across[col + 1], down[row], down[row + 1])
        _cell(panel.canvas, corners, float(values_AB[row, col]), limit)
        if not rows_AB[row, col]:
            panel.canvas.dot((corners[0] + corners[1]) / 2, (corners[2] + corners[3]) / 2, MUTED, radius=0.8)
    # Drawn last, as a browser shows the description of the topmost element.
    for cell in map_cells(pair):
        sides = [across[cell.col], across[cell.col + 1]], [down[cell.row], down[cell.row + 1]]
        (left, right), (top, bottom) = map(sorted, sides)
        panel.canvas.hint(left, top, right, bottom, describe_cell(pair, cell))


def _edges(side: PairAxis) -> Float64:
    return np.asarray(side.edges or np.arange(len(side.names) + 1) - 0.5, dtype=np.float64)


def _cell(canvas: Canvas, corners: tuple[float, float, float, float], value: float, limit: float) -> None:
    """Fill a rectangle: warm above zero, cool below, and paler near zero."""
    left, right, bottom, top = corners
    outline = [(left, bottom), (right, bottom), (right, top), (left, top)]
    # Opacity rather than paler colors, because a page may be dark or light.
    canvas.area(outline, WARM if value > 0 else ACCENT, opacity=abs(value) / (limit or 1.0), crisp=True)


def _paint_key(canvas: Canvas, beside: Box, limit: float) -> None:
    left, right = beside.right + KEY_GAP, beside.right + KEY_GAP + KEY_WIDTH
    ends = limit or 1.0
    panel = Panel(
        canvas,
        Box(left=left, top=beside.top, right=right, bottom=beside.bottom),
        Axis(low=0, high=1),
        Axis(low=-ends, high=ends),
    )
    edges = np.linspace(-ends, ends, KEY_STEPS + 1)
    for low, high, below, above in zip(edges, edges[1:], panel.down(edges), panel.down(edges[1:]), strict=False):
        _cell(canvas, (left, right, below, above), float(low + high) / 2 if limit else 0.0, ends)
    ticks = tick_texts(even_ticks(-ends, ends, 5))
    for (_, text), down in zip(ticks, panel.down([tick for tick, _ in ticks]), strict=True):
        canvas.text(right + 4, float(down), text, anchor="start")
    canvas.text(right + KEY_ROOM - 8, (beside.top + beside.bottom) / 2, "log-odds", angle=90)
