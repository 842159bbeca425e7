"""What a column alone does to the log-odds: partial dependence, the spread of the rows around it, and its band.

Shape suffixes: N rows, P points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from dkan_core.explanation.additive import COVERAGE, AdditiveCurves
from dkan_core.explanation.columns import Column
from dkan_core.explanation.contributions import bin_values
from dkan_core.explanation.formulas import Formula, find_formula
from dkan_core.explanation.grid import Grid, Role, histogram, make_grid
from dkan_core.explanation.response import Response, affordable_rows, respond_by_member
from dkan_core.explanation.scales import ScaleKind
from dkan_core.utils.arrays import Float64

# Quantiles that show what most rows do. Quartiles would hide that a tenth of the rows differ, and extremes show single
# rows.
SPREAD = (0.1, 0.9)
# Of a band, in standard errors.
HALF_WIDTHS = NormalDist().inv_cdf((1 + COVERAGE) / 2)


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

    member_spread: float = 0.0
    """Standard deviation of ``mean`` over the members of an ensemble; 0 where there is one."""

    error: float | None = None
    """Standard error of ``mean``, as of a model that had seen other rows; None where it is not known."""

    band: tuple[float, float] | None = None
    """Covers the mean that unlimited rows would give at 90% of a curve's values; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Curve of one column: its effect on the log-odds."""

    name: str
    kind: str
    shape: Literal["curve", "levels"]
    scale: ScaleKind
    scale_width: float
    points: list[Point]
    density: dict[str, list[float]]
    """``edges`` and ``counts`` of the rows' histogram; empty for levels."""

    hidden_rows: int
    """Rows at levels that are not shown."""

    effect_rows: int
    """Rows whose individual curves were read."""

    formula: Formula | None = None
    """A short formula close to the curve of a number; None where there is none."""

    def of(self, *roles: Role) -> list[Point]:
        """Return the points of some roles."""
        return [point for point in self.points if point.role in roles]


@dataclass(frozen=True)
class ReadCurve:
    """A curve as read from the model, before it has a band and a formula."""

    grid: Grid
    mean_P: Float64
    low_P: Float64
    high_P: Float64
    member_spread_P: Float64
    """Standard deviation over the members of an ensemble; 0 where there is one."""

    members: int
    rows: int


def read_term(terms: AdditiveCurves, response: Response, column: Column, *, label: int) -> tuple[ReadCurve, Float64]:
    """Return the curve of a column of an additive model, the term itself, and its standard error by the members."""
    grid = make_grid(column, response.arrays)
    members_PM = terms.of(column, grid.cells, label)
    mean_P, members = members_PM.mean(axis=1), members_PM.shape[1]
    spread_P = members_PM.std(axis=1, ddof=1) if members > 1 else np.zeros(len(mean_P))
    read = ReadCurve(grid, mean_P, mean_P, mean_P, spread_P, members, len(grid.row_values_N))
    return read, terms.error_factor * spread_P


def read_curve(response: Response, column: Column, *, rows: int, cells: float) -> ReadCurve:
    """Read a column's curve of the response's first label.

    Each of some rows is given every value of the grid in turn (individual conditional expectation, Goldstein et al.
    2015, arXiv:1309.6392). Its curve is centred on its mean over the column's distribution, so that an effect that
    depends on no other column gives every row the same curve and a spread without width. The mean over rows is the
    partial dependence (Friedman 2001).

    Args:
        response: The model's; all of its rows tell how the column is distributed.
        column: The column.
        rows: Individual curves at most.
        cells: Values to read at most.
    """
    grid = make_grid(column, response.arrays)
    count = min(rows, affordable_rows(response.arrays, len(grid.cells), cells))
    answered = respond_by_member(response, count, [(column, grid.cells)])
    # Subtracting each row's mean over the column leaves the effect of the column alone.
    curves_PN = answered[:, :, 0] - grid.weights_P @ answered[:, :, 0]
    members_PM = answered[:, :, 1:].mean(axis=1)
    members_PM = members_PM - grid.weights_P @ members_PM
    members = members_PM.shape[1]
    low_P, high_P = np.quantile(curves_PN, SPREAD, axis=1)
    return ReadCurve(
        grid=grid,
        mean_P=curves_PN.mean(axis=1),
        low_P=low_P,
        high_P=high_P,
        member_spread_P=members_PM.std(axis=1, ddof=1) if members > 1 else np.zeros(len(grid.cells)),
        members=max(1, members),
        rows=count,
    )


def describe_curve(read: ReadCurve, error_P: Float64 | None = None, counts: Sequence[int] | None = None) -> Curve:
    """Return a curve with its band and its formula.

    Args:
        read: The curve as it was read.
        error_P: Standard errors, where they are known.
        counts: The column's histogram in training (``Preprocessor.counts``). Default: that of the rows read.
    """
    grid = read.grid
    formula = None
    # A formula in seconds since 1970, or in weekday numbers, would tell a reader nothing.
    if grid.column.numeric is not None and not grid.column.is_calendar:
        # Values that stand for unknown, such as -999, are not on the curve.
        apart_P = np.isin(grid.values_P, grid.column.apart)
        weights_P = np.where(apart_P, 0.0, _training_weights(grid, counts))
        formula = find_formula(grid.values_P, read.mean_P, weights_P, error_P)
    return Curve(
        name=grid.column.name,
        kind=grid.column.kind,
        shape=grid.shape,
        scale=grid.scale.kind,
        scale_width=grid.scale.width,
        points=[_point(read, error_P, index) for index in range(len(grid.roles_P))],
        density={} if grid.shape == "levels" else histogram(grid),
        hidden_rows=int(np.count_nonzero(grid.point_N < 0)),
        effect_rows=read.rows,
        formula=formula,
    )


def _training_weights(grid: Grid, counts: Sequence[int] | None) -> Float64:
    """Return the share of the training rows at each point of a numeric column."""
    if counts is None:
        return grid.weights_P
    point_V = grid.points_of(bin_values(grid.column.knots))
    shown_V = point_V >= 0
    rows_P = np.bincount(point_V[shown_V], np.asarray(counts)[shown_V], minlength=len(grid.roles_P))
    weights: Float64 = rows_P / max(1.0, rows_P.sum())
    return weights


def _point(read: ReadCurve, error_P: Float64 | None, index: int) -> Point:
    grid, mean = read.grid, float(read.mean_P[index])
    value = float(grid.values_P[index])
    error = None if error_P is None else float(error_P[index])
    return Point(
        role=grid.roles_P[index],
        name=grid.names_P[index],
        value=None if np.isnan(value) else value,
        mean=mean,
        low=float(read.low_P[index]),
        high=float(read.high_P[index]),
        member_spread=float(read.member_spread_P[index]),
        error=error,
        band=None if error is None else (mean - HALF_WIDTHS * error, mean + HALF_WIDTHS * error),
        rows=int(grid.rows_P[index]),
    )
