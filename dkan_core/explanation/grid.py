"""The points at which a column's curve is read: existing values in the column's unit, each with its share of the rows.

Shape suffixes: N rows, P points, K bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING
from dkan_core.explanation.columns import EXACT_KNOTS, Cells, Column, encode_values, read_codes, read_values
from dkan_core.explanation.scales import WEEKDAYS, Scale, written_time
from dkan_core.utils.arrays import Arrays, Float64

# Most bars with legible names in a figure of 3.7 inches; the months of a year fit.
MAX_LEVELS = 12
# More marks than these would cover the curve. Rows of other frequent values are read at the nearest point of the line;
# if they are more than this share, the line passes through such values, which may be the only ones for a long stretch.
MAX_MARKS, MAX_UNMARKED = 16, 0.1
# Even points draw the curve; quantiles put more points where the rows are. At most 40 values are read in all.
EVEN_POINTS, QUANTILE_POINTS = 24, 16
# Half a percent at each end is cut off: one outlier would squeeze all other rows into a corner.
TAIL = 0.005
# From this ratio of the largest size to the lower quartile on, the axis is not linear: the smaller values would lie
# within a twentieth of it.
LONG_TAIL = 20.0

Role = Literal["curve", "mark", "level", "missing"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The points at which a column's curve is read, those of the axis first, missing last."""

    column: Column
    shape: Literal["curve", "levels"]
    scale: Scale
    values_P: Float64
    """Numbers in the column's unit; nan for categories and missing."""

    names_P: list[str]
    """How a person writes each point."""

    roles_P: list[Role]
    cells: Cells
    point_N: npt.NDArray[np.int64]
    """The point that stands for each row; -1 for a level that is not shown."""

    row_values_N: Float64
    """Each row's number, nan where missing; without rows for categories."""

    @property
    def rows_P(self) -> npt.NDArray[np.int64]:
        """Return how many rows each point stands for."""
        return np.bincount(self.point_N[self.point_N >= 0], minlength=len(self.roles_P)).astype(np.int64)

    def points_of(self, values_N: Float64) -> npt.NDArray[np.int64]:
        """Return the point that stands for each value of a numeric column; -1 for a value that is missing."""
        marks = np.array([role == "mark" for role in self.roles_P], dtype=bool)
        points = self.values_P[~marks & ~np.isnan(self.values_P)]
        return _points_of(points, self.values_P[marks], self.scale, values_N)

    @property
    def weights_P(self) -> Float64:
        """Return each point's share of the rows."""
        weights: Float64 = self.rows_P / max(1, int(self.rows_P.sum()))
        return weights


def make_grid(column: Column, arrays: Arrays) -> Grid:
    """Choose the points of a column's curve from the rows' values.

    A number gets levels where it has at most 12 distinct values; else points evenly over the middle 99% of the rows and
    at their quantiles, or all values where most are frequent. A few frequent values amid others are marks beside the
    curve.
    A category gets its 12 most frequent levels. Rows without a value are a point of their own.
    """
    return (
        _category_grid(column, arrays) if column.numeric is None else _numeric_grid(column, read_values(column, arrays))
    )


def _category_grid(column: Column, arrays: Arrays) -> Grid:
    assert column.coded is not None
    codes_N = read_codes(column, arrays)
    counts = np.bincount(codes_N, minlength=column.coded.cardinality)
    levels = [int(code) for code in np.argsort(-counts, kind="stable") if counts[code] and code != MISSING]
    chosen = levels[:MAX_LEVELS] + [MISSING] * bool(counts[MISSING])
    vocabulary = column.coded.names
    point_of = np.full(column.coded.cardinality, -1)
    point_of[chosen] = np.arange(len(chosen))
    return Grid(
        column=column,
        shape="levels",
        scale=Scale(),
        values_P=np.full(len(chosen), np.nan),
        names_P=[_level_name(code, vocabulary) for code in chosen],
        roles_P=["missing" if code == MISSING else "level" for code in chosen],
        cells=Cells(None, np.array(chosen, dtype=np.int32)),
        point_N=point_of[codes_N],
        row_values_N=np.empty(0),
    )


def _level_name(code: int, vocabulary: Sequence[object]) -> str:
    if code < FIRST_CODE:
        return "missing" if code == MISSING else "(rare)"
    return str(vocabulary[code - FIRST_CODE]) or "(empty)"


def _numeric_grid(column: Column, values_N: Float64) -> Grid:
    present = np.sort(values_N[~np.isnan(values_N)])
    distinct = np.unique(present)
    scale, marks = even_scale(column), np.empty(0)
    # Few values are shown as a list of levels, as nothing lies between them.
    if len(distinct) <= MAX_LEVELS:
        points, role = distinct, "level"
    else:
        # Rows later than the training data would all be at the end of the axis, away from the learned curve.
        spread = np.sort(np.concatenate([present, column.knots])) if column.is_time else present
        # A value that stands for unknown is not an end of the curve.
        apart = distinct[np.isin(distinct, column.apart)]
        spread = spread[~np.isin(spread, apart)]
        low, high = shown_range(spread)
        scale = choose_scale(column, spread, low)
        points, marks, role = *_curve_points(column, spread, low, high, scale), "curve"
        marks = np.concatenate([marks, apart])
    values_P = np.concatenate([points, marks])
    roles_P = [role] * len(points) + ["mark"] * len(marks)
    point_N = _points_of(points, marks, scale, values_N)
    missing_N = np.isnan(values_N)
    point_N[missing_N] = len(values_P)
    if missing_N.any():
        values_P, roles_P = np.append(values_P, np.nan), [*roles_P, "missing"]
    return Grid(
        column=column,
        shape="levels" if role == "level" else "curve",
        scale=scale,
        values_P=values_P,
        names_P=["missing" if np.isnan(value) else written_value(column, value) for value in values_P],
        roles_P=roles_P,  # type: ignore[arg-type]
        cells=encode_values(column, values_P),
        point_N=point_N,
        row_values_N=values_N,
    )


def _curve_points(column: Column, present: Float64, low: float, high: float, scale: Scale) -> tuple[Float64, Float64]:
    """Return the points of the curve and the marks beside it."""
    inside = present[(present >= low) & (present <= high)]
    frequent = column.frequent[(column.frequent >= low) & (column.frequent <= high)]
    if len(column.knots) <= EXACT_KNOTS and (not len(frequent) or 2 * len(column.frequent) >= len(column.knots)):
        return np.unique(inside), np.empty(0)
    # With too many values for a point each, the curve has chosen points, and frequent values become marks.
    even = scale.even(low, high, EVEN_POINTS)
    ranks = np.quantile(inside, np.linspace(0, 1, QUANTILE_POINTS), method="nearest")
    points = np.unique(np.concatenate([column.rounded(even), ranks]))
    counts = np.array([np.count_nonzero(inside == value) for value in frequent])
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    marks = np.sort(frequent[order[:MAX_MARKS]])
    uncoded = points[~np.isin(points, column.frequent)]
    if len(uncoded) > 1 and counts[order[MAX_MARKS:]].sum() <= MAX_UNMARKED * len(inside):
        return uncoded, marks
    return np.unique(np.concatenate([points, marks])), np.empty(0)


def shown_range(present: Float64) -> tuple[float, float]:
    """Return the ends of the axis: the middle 99% of the sorted values, with and without the most common value.

    >>> shown_range(np.array([0.0] * 1000 + [5.0, 6.0, 7.0]))
    (0.0, 7.0)
    """
    values, counts = np.unique(present, return_counts=True)
    rest = present[present != values[np.argmax(counts)]]
    # The others count only if they are a thousandth of the rows: fewer are outliers themselves.
    ends = [
        np.quantile(part, [TAIL, 1 - TAIL], method="nearest")
        for part in (present, rest)
        if 1000 * len(part) >= len(present)
    ]
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


def even_scale(column: Column) -> Scale:
    """Return the scale on which equal steps of a numeric column are equally long."""
    return Scale("time" if column.is_time else "linear")


def written_value(column: Column, value: float) -> str:
    """Write a value of a numeric column as a person would: dates and weekdays as such, times in the column's zone."""
    if column.is_weekday:
        return WEEKDAYS[int(value)]
    if column.is_time and column.numeric is not None and column.numeric.time is not None:
        return written_time(value, column.numeric.time.zone)
    return even_scale(column).written(value)


def choose_scale(column: Column, present: Float64, low: float) -> Scale:
    """Return an even scale; for a long tail a logarithmic one, with an inverse hyperbolic sine if values reach 0."""
    if column.is_time:
        return even_scale(column)
    sizes = np.abs(present[present != 0])
    if not len(sizes) or np.quantile(sizes, 1 - TAIL) <= LONG_TAIL * np.quantile(sizes, 0.25):
        return Scale()
    return Scale("log") if low > 0 else Scale("asinh", float(np.quantile(sizes, 0.1)))


def _points_of(points: Float64, marks: Float64, scale: Scale, values_N: Float64) -> npt.NDArray[np.int64]:
    """Return the index of each value's mark or else of the nearest point on the axis; -1 if it is missing."""
    between = scale.inverse((scale.forward(points)[1:] + scale.forward(points)[:-1]) / 2)
    # No float lies halfway between two neighbouring floats.
    between = np.minimum(between, np.nextafter(points[1:], -np.inf))
    point_N = np.searchsorted(between, values_N).astype(np.int64)
    for index, mark in enumerate(marks, len(points)):
        point_N[values_N == mark] = index
    point_N[np.isnan(values_N)] = -1
    return point_N


def histogram(grid: Grid, bins: int = 40) -> dict[str, list[float]]:
    """Count the rows in bins that are even on the axis of a curve, over what the curve spans.

    Shape:
        - Output: ``edges`` (K + 1), ``counts`` (K)
    """
    shown = grid.values_P[~np.isnan(grid.values_P) & ~np.isin(grid.values_P, grid.column.apart)]
    low, high = float(shown.min()), float(shown.max())
    if grid.column.whole and grid.scale.kind == "linear":
        step = max(1.0, np.ceil((high - low + 1) / bins))
        edges = np.arange(low - 0.5, high + 0.5 + step, step)
    else:
        edges = grid.scale.even(low, high, bins + 1)
    values_N = grid.row_values_N
    counts = np.histogram(values_N[~np.isnan(values_N)], edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist()}
