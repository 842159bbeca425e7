"""``strategies.png``: time per epoch and speedup by workers, one column per size; below, sums by message size."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.quality.picture import OTHERS, STYLE
from benchmarks.strategies.ways import DATA_PARALLEL, REFERENCE, WAYS
from dkan_core.report.figures.canvas import ACCENT, WARM

Rows = Sequence[dict[str, Any]]
NAMES = (REFERENCE, *(way.name for way in WAYS if way.name != REFERENCE), DATA_PARALLEL)
COLORS = dict(zip(NAMES, (WARM, ACCENT, *OTHERS, "#c77dba", "#c9b037", "#222222"), strict=True))


def draw(runs: Rows, sums: Rows) -> bytes:
    """Return the page as PNG."""
    sizes = sorted({row["rows"] for row in runs})
    backends = sorted({row["backend"] for row in sums})
    columns = max(len(sizes), len(backends))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.9 * columns + 1.5, 10.5), layout="constrained")
        axes = figure.subplots(3, columns, squeeze=False)
        for index in range(columns):
            for row in range(3):
                axes[row, index].set_visible(index < len(backends if row == 2 else sizes))
        for index, size in enumerate(sizes):
            found = [row for row in runs if row["rows"] == size]
            _by_workers(axes[0, index], found, "epoch_seconds", f"{size:,} rows: seconds per epoch")
            _by_workers(axes[1, index], found, "speedup", "speedup over single")
        for index, backend in enumerate(backends):
            _by_size(axes[2, index], [row for row in sums if row["backend"] == backend], backend)
        handles = {line.get_label(): line for each in axes[0] for line in each.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    return picture.getvalue()


def _by_workers(axes: Axes, rows: Rows, key: str, title: str) -> None:
    for name in NAMES:
        points = sorted((row["workers"], row[key]) for row in rows if row["strategy"] == name)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=COLORS[name], label=name)
    axes.set_xscale("log", base=2)
    workers = sorted({row["workers"] for row in rows})
    axes.set_xticks(workers, [str(count) for count in workers])
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    axes.set_xlabel("workers")


def _by_size(axes: Axes, rows: Rows, backend: str) -> None:
    styles = ("-", "--", ":", "-.")
    for style, workers in zip(styles, sorted({row["workers"] for row in rows}), strict=False):
        found = sorted((row["bytes"], row["ring_ms"], row["torch_ms"]) for row in rows if row["workers"] == workers)
        sizes, ring, torch = zip(*found, strict=True)
        axes.plot(sizes, ring, style, color=WARM, label=f"ring, {workers} workers")
        axes.plot(sizes, torch, style, color=ACCENT, label=f"{backend}, {workers} workers")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("ms per all-reduce", loc="left")
    axes.set_xlabel("bytes")
    axes.legend(frameon=False)
