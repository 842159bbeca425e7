"""What a column alone does to the log-odds: partial dependence, with the spread of the individual curves around it.

Shape suffixes: N rows, P points.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkan_core.data.encoding.preprocessor import Float64
from dkan_core.explanation.columns import Column
from dkan_core.explanation.grid import Grid, Role, histogram, make_grid
from dkan_core.explanation.response import Answers, affordable_rows, respond

# Shows what most rows do. Quartiles would hide that a tenth of the rows go another way, and the extremes show
# two rows.
BAND = (0.1, 0.9)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The effect of one value, in log-odds against the average over the column's values."""

    role: Role
    """curve, mark (a frequent value that has a code of its own), level, or missing."""

    name: str
    value: float | None
    """The number in the column's unit; None for categories and missing."""

    mean: float
    low: float
    """The 10% quantile over rows; it lies far from the mean where the effect depends on other columns."""

    high: float
    """The 90% quantile over rows."""

    rows: int
    """Rows that the point stands for."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What the model learned about one column."""

    name: str
    kind: str
    shape: Literal["curve", "levels"]
    scale: Literal["linear", "log", "asinh"]
    scale_width: float
    points: list[Point]
    density: dict[str, list[float]]
    """``edges`` and ``counts`` of the rows' histogram; empty for levels."""

    hidden_rows: int
    """Rows at levels that are not shown."""

    effect_rows: int
    """Rows whose individual curves were read."""

    def of(self, *roles: Role) -> list[Point]:
        """Return the points of some roles."""
        return [point for point in self.points if point.role in roles]


def read_curve(answers: Answers, column: Column, *, label: int, rows: int, cells: float) -> Curve:
    """Read a column's curve.

    Each of some rows is given every value of the grid in turn (individual conditional expectation, Goldstein et al.
    2015, arXiv:1309.6392). Its curve is centred on its mean over the column's distribution, so that an effect that
    depends on no other column gives every row the same curve and a band without width. The mean over rows is the
    partial dependence (Friedman 2001).

    Args:
        answers: The model's; all of its rows tell how the column is distributed.
        column: The column.
        label: Which of the answers' labels.
        rows: Individual curves at most.
        cells: Values to read at most.
    """
    grid = make_grid(column, answers.arrays)
    count = min(rows, affordable_rows(answers.arrays, len(grid.cells), cells))
    curves_PN = respond(answers, count, [(column, grid.cells)], label)
    # Each row's own mean over the column goes: what is left is the effect of the column alone.
    curves_PN = curves_PN - grid.weights_P @ curves_PN
    low_P, high_P = np.quantile(curves_PN, BAND, axis=1)
    return Curve(
        name=column.name,
        kind=column.kind,
        shape=grid.shape,
        scale=grid.scale.kind,
        scale_width=grid.scale.width,
        points=_points(grid, curves_PN.mean(axis=1), low_P, high_P),
        density={} if grid.shape == "levels" else histogram(grid),
        hidden_rows=int(np.count_nonzero(grid.point_N < 0)),
        effect_rows=count,
    )


def _points(grid: Grid, mean_P: Float64, low_P: Float64, high_P: Float64) -> list[Point]:
    return [
        Point(
            role=role,
            name=name,
            value=None if np.isnan(value) else float(value),
            mean=float(mean),
            low=float(low),
            high=float(high),
            rows=int(rows),
        )
        for role, name, value, mean, low, high, rows in zip(
            grid.roles_P, grid.names_P, grid.values_P, mean_P, low_P, high_P, grid.rows_P, strict=True
        )
    ]
