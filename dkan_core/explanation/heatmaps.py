"""Heat maps of what two columns do together, in the look of the report's figures."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dkan_core.data.encoding.preprocessor import Float64
from dkan_core.evaluation.metrics import Array
from dkan_core.explanation.drawings import STEPS, Drawing, draw, scale_axis, short
from dkan_core.explanation.interactions import PairAxis, PairMap
from dkan_core.report.figures import ACCENT, MUTED, WARM


def draw_map(pair: PairMap, *, png: bool = True) -> Drawing:
    """Draw the effect of a pair, and beside it the part that neither column has alone."""
    joint, own, rows = (np.array(part) for part in (pair.joint, pair.own, pair.rows))

    def paint(figure: Figure) -> None:
        grid = figure.add_gridspec(1, 4, width_ratios=(1, 0.04, 1, 0.04))
        for place, (values, title) in enumerate(((joint, "Both together"), (own, "Beyond the sum of the two alone"))):
            axes = figure.add_subplot(grid[0, 2 * place])
            # Each map has colors of its own range: the part beyond the sum is often ten times smaller.
            _paint_cells(axes, values, rows, pair)
            axes.set_title(title, fontsize=9.5, loc="left")
            _paint_key(figure.add_subplot(grid[0, 2 * place + 1]), float(np.abs(values).max()))

    return draw((9.8, 3.9), paint, png=png)


def _paint_cells(axes: Axes, values_AB: Float64, rows_AB: Array, pair: PairMap) -> None:
    x, y = _edges(pair.second), _edges(pair.first)
    axes.pcolormesh(x, y, _colors(values_AB, float(np.abs(values_AB).max())), antialiased=False, linewidth=0)
    places_A, places_B = np.nonzero(rows_AB == 0)
    axes.plot(_middles(x, pair.second)[places_B], _middles(y, pair.first)[places_A], ".", color=MUTED, markersize=2)
    axes.set(xlabel=short(pair.second.name, 40), ylabel=short(pair.first.name, 40))
    axes.grid(visible=False)
    sides: tuple[tuple[Literal["x", "y"], PairAxis, Float64], ...] = (("x", pair.second, x), ("y", pair.first, y))
    for which, side, edges in sides:
        axis = axes.xaxis if which == "x" else axes.yaxis
        if side.edges:
            scale_axis(axes, which, side.on_axis, edges[[0, -1]].tolist())
        else:
            axis.set_ticks(range(len(side.names)), [short(name, 20) for name in side.names])
    # About 32 characters fit below the axis of a map; longer rows of names would overlap.
    if not pair.second.edges and max(map(len, pair.second.names)) * len(pair.second.names) > 32:
        axes.tick_params(axis="x", labelrotation=40)
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def _edges(side: PairAxis) -> Float64:
    return np.asarray(side.edges or np.arange(len(side.names) + 1) - 0.5, dtype=np.float64)


def _middles(edges: Float64, side: PairAxis) -> Float64:
    places = side.on_axis.forward(edges)
    return side.on_axis.inverse((places[1:] + places[:-1]) / 2)


def _colors(values: Float64, limit: float) -> Float64:
    """Return warm colors above zero and cool ones below, the paler the nearer: the ground shows through, dark or light.

    Shape:
        - Input: ``(*)``
        - Output: ``(*, 4)``
    """
    colors = np.empty((*values.shape, 4))
    colors[..., :3] = np.where(values[..., None] > 0, to_rgb(WARM), to_rgb(ACCENT))
    # Opacity rather than paler colors: a page may be dark or light.
    colors[..., 3] = np.abs(values) / (limit or 1.0)
    return colors


def _paint_key(axes: Axes, limit: float) -> None:
    steps = np.linspace(-limit, limit, 42) if limit else np.array([-1.0, 1.0])
    middles = (steps[1:] + steps[:-1]) / 2
    axes.pcolormesh([0, 1], steps, _colors(middles[:, None], limit), antialiased=False, linewidth=0)
    axes.set(xticks=[], ylabel="log-odds")
    axes.yaxis.set_label_position("right")
    axes.yaxis.tick_right()
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
    axes.grid(visible=False)
