"""``results.png``: a row per data set, AP with its interval on the left, AP against CPU seconds on the right."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.quality.models import MODELS
from benchmarks.quality.runner import OK
from benchmarks.quality.summary import REFERENCE, Row
from dkan_core.report.figures.canvas import ACCENT, GRID, MUTED, WARM

OTHERS = ("#3f8f5b", "#b0563f", "#8a62a8", "#4ba3b5", "#9a8534", "#8b94a0", "#5c6b7a")
COLORS = {REFERENCE: ACCENT, "fastkan": WARM}
COLORS |= dict(zip((name for name in MODELS if name not in COLORS), OTHERS, strict=False))
MARKERS = dict(zip(MODELS, "oDs^vPX", strict=False))
ROW_INCHES, WIDTH_INCHES = 2.7, 11.0
# The look of the report's figures.
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": MUTED,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
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
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def draw(sets: Sequence[Mapping[str, Any]], reference: str = REFERENCE) -> bytes:
    """Return the picture as PNG.

    Args:
        sets: ``data`` and ``rows`` of each data set, as for the tables.
        reference: Model whose AP is a line across the others'.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 0.7 + ROW_INCHES * len(sets)), layout="constrained")
        axes = figure.subplots(len(sets), 2, squeeze=False, sharey="row", width_ratios=[1, 1])
        for (left, right), entry in zip(axes, sets, strict=True):
            rows = [row for row in entry["rows"] if row["status"] == OK]
            _intervals(left, rows, reference)
            _costs(right, rows)
            left.set_title(entry["data"]["name"], loc="left", color="#222222", fontweight="bold")
            left.set_ylabel("test AP")
        axes[0][1].set_title("against the CPU seconds of the fit; hollow: the budget ran out", loc="left", fontsize=9.5)
        axes[-1][0].set_xlabel("lines: 95% over test rows; dashed: " + reference)
        axes[-1][1].set_xlabel("CPU seconds")
        handles = {row["model"]: _handle(row["model"]) for entry in sets for row in entry["rows"]}
        figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=len(handles), frameon=False)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150)
    return target.getvalue()


def _intervals(axes: Axes, rows: Sequence[Row], reference: str) -> None:
    for position, row in enumerate(rows):
        axes.vlines(position, *row["interval"], color=COLORS.get(row["model"], MUTED), linewidth=1.6, alpha=0.55)
        _point(axes, position, row)
        if row["model"] == reference:
            axes.axhline(
                row["average_precision"],
                color=COLORS.get(reference, MUTED),
                linewidth=0.9,
                linestyle=(0, (4, 3)),
                alpha=0.6,
            )
    axes.set_xticks(range(len(rows)), [row["model"] for row in rows])
    axes.set_xlim(-0.6, max(1, len(rows)) - 0.4)
    axes.grid(visible=False, axis="x")


def _costs(axes: Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        _point(axes, row["cpu_seconds"], row)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _point(axes: Axes, x: float, row: Row) -> None:
    color, marker = COLORS.get(row["model"], MUTED), MARKERS.get(row["model"], "o")
    axes.plot(
        x,
        row["average_precision"],
        marker,
        color=color,
        markersize=7,
        markerfacecolor="white" if row["capped"] else color,
    )


def _handle(model: str) -> Line2D:
    color, marker = COLORS.get(model, MUTED), MARKERS.get(model, "o")
    return Line2D([], [], linestyle="", color=color, marker=marker, markersize=7, label=model)
