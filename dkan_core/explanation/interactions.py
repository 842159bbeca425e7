"""What two columns do together beyond what each does alone.

Shape suffixes: N rows, A and B bins of the two columns, M members of an ensemble.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import FIRST_CODE
from dkan_core.explanation.columns import Cells, Column, Settings, encode_values, read_codes, read_values
from dkan_core.explanation.grid import MAX_LEVELS, choose_scale, even_scale, shown_range, written_value
from dkan_core.explanation.response import Response, affordable_rows, respond, respond_by_member
from dkan_core.explanation.scales import Scale, ScaleKind
from dkan_core.utils.arrays import Array, Arrays, Float64

# Rounding error of float32, in log-odds, in the own part of a pair whose columns only add up.
ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """A pair of columns."""

    first: str
    second: str

    strength: float
    """Standard deviation of the pair's own part of the effect, in log-odds."""

    share: float
    """That variance as a share of the pair's whole variance: Friedman's H squared, over a grid."""


@dataclass(frozen=True, kw_only=True)
class PairAxis:
    """One side of a heat map."""

    name: str
    names: list[str]
    """The value that represents each bin, or the level's name."""

    edges: list[float]
    """Ends of the bins of a number; empty for levels."""

    scale: ScaleKind
    scale_width: float

    ranges: Sequence[str] = ()
    """Lower and upper end of each bin of a number, as text; empty for a bin of one value."""

    @property
    def on_axis(self) -> Scale:
        """Return where values lie on the axis."""
        return Scale(self.scale, self.scale_width)


@dataclass(frozen=True, kw_only=True)
class PairMap:
    """The effect of a pair over a grid, in log-odds against its average."""

    first: PairAxis
    second: PairAxis
    joint: list[list[float]]
    """Both columns' effect, a row for each bin of the first."""

    own: list[list[float]]
    """The joint effect minus each column's own effect."""

    rows: list[list[int]]
    """Rows of the data in each bin; the model says little about a bin without any."""

    joint_error: list[list[float]] | None = None
    """Standard errors of ``joint`` by the members of an ensemble; None where there is one."""

    own_error: list[list[float]] | None = None
    """Those of ``own``."""


@dataclass(frozen=True, kw_only=True)
class _Bins:
    """A column cut into bins, each with a value that stands for it."""

    column: Column
    cells: Cells
    bin_N: npt.NDArray[np.int64]
    """Bin of each row, -1 where it is missing or not shown."""

    axis: PairAxis

    @property
    def weights_A(self) -> Float64:
        counts = np.bincount(self.bin_N[self.bin_N >= 0], minlength=len(self.cells))
        weights: Float64 = counts / max(1, int(counts.sum()))
        return weights


def find_interactions(
    response: Response,
    columns: Sequence[Column],
    *,
    bins: int,
    rows: int,
    cells: float,
    advance: Callable[[int], None],
) -> list[Interaction]:
    """Measure every pair of columns, the strongest first; those that do nothing together are left out.

    Both columns are set to every pair of some of their values in some rows; the mean over the rows is the partial
    dependence of the pair. Taking away the mean over either column leaves the pair's own part. The values are weighted
    by how often each occurs, as if the columns were independent, so that the parts are orthogonal.

    Args:
        response: The model's; only its first label is read.
        columns: Columns to pair.
        bins: Values of a column.
        rows: Rows to average over, at most.
        cells: Values to read for all pairs, at most.
        advance: Called with 1 after each pair.
    """
    cut = [_cut(column, response.arrays, bins, even=False) for column in columns]
    # A column with fewer than two values cannot interact.
    cut = [part for part in cut if len(part.cells) > 1]
    pairs = list(itertools.combinations(cut, 2))
    passes = sum(len(first.cells) * len(second.cells) for first, second in pairs)
    count = min(rows, affordable_rows(response.arrays, passes, cells))
    found = []
    for first, second in pairs:
        effect_P = respond(response, count, _settings(first, second)).mean(axis=1)
        (joint_AB,), (own_AB,) = _parts(effect_P, first, second)
        weights_AB = np.outer(first.weights_A, second.weights_A)
        own, joint = (float((weights_AB * np.square(part)).sum()) for part in (own_AB, joint_AB))
        # Rounding may make the own part a little larger than the whole.
        share = min(1.0, own / joint) if joint else 0.0
        found.append(
            Interaction(first=first.column.name, second=second.column.name, strength=float(np.sqrt(own)), share=share)
        )
        advance(1)
    return sorted((pair for pair in found if pair.strength > ROUNDING), key=lambda pair: -pair.strength)


def map_pair(
    response: Response,
    first: Column,
    second: Column,
    *,
    bins: int,
    rows: int,
    cells: float,
    error_factor: float | None = None,
) -> PairMap:
    """Read a pair's effect over a grid that is even in the columns' own units.

    Args:
        response: The model's; only its first label is read.
        first: The column of the map's vertical axis.
        second: The column of its horizontal axis.
        bins: Values of a column, at most.
        rows: Rows to average over, at most.
        cells: Values to read, at most.
        error_factor: What the members' standard deviation is multiplied by for a standard error. Default: that of their
            mean.
    """
    one, two = (_cut(column, response.arrays, bins, even=True) for column in (first, second))
    count = min(rows, affordable_rows(response.arrays, len(one.cells) * len(two.cells), cells))
    answered = respond_by_member(response, count, _settings(one, two)).mean(axis=1).T
    joint_MAB, own_MAB = _parts(answered, one, two)
    members = len(answered) - 1
    factor = members**-0.5 if error_factor is None and members else error_factor or 0.0
    errors = [
        (factor * part_MAB[1:].std(axis=0, ddof=1)).tolist() if members > 1 else None
        for part_MAB in (joint_MAB, own_MAB)
    ]
    shown_N = (one.bin_N >= 0) & (two.bin_N >= 0)
    rows_AB: Array = np.zeros(joint_MAB[0].shape, dtype=np.int64)
    np.add.at(rows_AB, (one.bin_N[shown_N], two.bin_N[shown_N]), 1)
    return PairMap(
        first=one.axis,
        second=two.axis,
        joint=joint_MAB[0].tolist(),
        own=own_MAB[0].tolist(),
        rows=rows_AB.tolist(),
        joint_error=errors[0],
        own_error=errors[1],
    )


def is_varied(column: Column, arrays: Arrays, bins: int) -> bool:
    """Return whether a column has several values in some rows, as a side of a map needs.

    Args:
        column: The column.
        arrays: The rows.
        bins: Of how many values; a column with another one in a few rows alone has one of them.
    """
    return len(_cut(column, arrays, bins, even=False).cells) > 1


def _settings(first: _Bins, second: _Bins) -> Settings:
    """Return both columns with every pair of their values."""
    one, two = np.divmod(np.arange(len(first.cells) * len(second.cells)), len(second.cells))
    return [(first.column, first.cells[one]), (second.column, second.cells[two])]


def _parts(effects: Float64, first: _Bins, second: _Bins) -> tuple[Float64, Float64]:
    """Return the centred partial dependence of a pair and its own part, of each of M functions.

    Shape:
        - effects: ``(A * B,)`` or ``(M, A * B)``
        - Output: two of ``(M, A, B)``; M is 1 where there is one
    """
    effect_MAB = effects.reshape(-1, len(first.cells), len(second.cells))
    over_second_MA, over_first_MB = effect_MAB @ second.weights_A, first.weights_A @ effect_MAB
    mean_M11 = (over_second_MA @ first.weights_A)[:, None, None]
    return effect_MAB - mean_M11, effect_MAB - over_second_MA[:, :, None] - over_first_MB[:, None, :] + mean_M11


def _cut(column: Column, arrays: Arrays, bins: int, *, even: bool) -> _Bins:
    """Cut a column into at most ``bins`` bins, of equal width on its axis or of equal count."""
    return (
        _cut_category(column, read_codes(column, arrays), bins)
        if column.numeric is None
        else _cut_number(column, read_values(column, arrays), bins, even)
    )


def _cut_category(column: Column, codes_N: npt.NDArray[np.int64], bins: int) -> _Bins:
    assert column.coded is not None
    counts = np.bincount(codes_N, minlength=column.coded.cardinality)
    frequent = [int(code) for code in np.argsort(-counts, kind="stable") if counts[code] and code >= FIRST_CODE]
    chosen = frequent[: min(bins, MAX_LEVELS)]
    bin_of = np.full(column.coded.cardinality, -1)
    bin_of[chosen] = np.arange(len(chosen))
    names = [str(column.coded.names[code - FIRST_CODE]) for code in chosen]
    return _Bins(
        column=column,
        cells=Cells(None, np.array(chosen, dtype=np.int32)),
        bin_N=bin_of[codes_N],
        axis=PairAxis(name=column.name, names=names, edges=[], scale="linear", scale_width=1.0),
    )


def _cut_number(column: Column, values_N: Float64, bins: int, even: bool) -> _Bins:
    # Values that stand for unknown are left out, like missing ones.
    unknown_N = np.isnan(values_N) | np.isin(values_N, column.apart)
    present = np.sort(values_N[~unknown_N])
    distinct = np.unique(present)
    scale, edges = even_scale(column), np.empty(0)
    if len(distinct) <= min(bins, MAX_LEVELS):
        stand_ins = distinct
    elif even:
        low, high = shown_range(present)
        scale = choose_scale(column, present, low)
        edges = (
            _whole_edges(low, high, bins)
            if column.whole and scale.kind == "linear"
            else scale.even(low, high, bins + 1)
        )
        stand_ins = np.array([_stand_in(present, *ends, column) for ends in itertools.pairwise(edges)])
    else:
        stand_ins = np.unique(np.quantile(present, _ranks(bins), method="nearest"))
    between = edges[1:-1] if len(edges) else (stand_ins[1:] + stand_ins[:-1]) / 2
    bin_N = np.searchsorted(between, values_N, side="right").astype(np.int64)
    bin_N[unknown_N] = -1
    names = [written_value(column, value) for value in stand_ins]
    # With whole numbers, a bin of width 1 holds a single value.
    ranges = [
        "" if column.whole and stop - start == 1 else f"{written_value(column, start)} to {written_value(column, stop)}"
        for start, stop in itertools.pairwise(edges.tolist())
    ]
    return _Bins(
        column=column,
        cells=encode_values(column, stand_ins),
        bin_N=bin_N,
        axis=PairAxis(
            name=column.name,
            names=names,
            edges=edges.tolist(),
            scale=scale.kind,
            scale_width=scale.width,
            ranges=ranges,
        ),
    )


def _whole_edges(low: float, high: float, bins: int) -> Float64:
    """Return the ends of bins of as many whole numbers each: of one, if there are no more than twice ``bins``.

    >>> _whole_edges(0, 3, bins=2).tolist(), _whole_edges(0, 5, bins=2).tolist()
    ([-0.5, 0.5, 1.5, 2.5, 3.5], [-0.5, 2.5, 5.5])
    """
    count = high - low + 1
    step = 1.0 if count <= 2 * bins else np.ceil(count / bins)
    return low - 0.5 + step * np.arange(np.ceil(count / step) + 1)


def _ranks(bins: int) -> list[float]:
    """Return ranks whose normal scores have the variance 1 of all: those in the middle of bins would miss the tails.

    >>> [round(rank, 2) for rank in _ranks(3)]
    [0.11, 0.5, 0.89]
    """
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((index + 0.5) / bins) for index in range(bins)])
    return [normal.cdf(score) for score in scores / scores.std()]


def _stand_in(present: Float64, low: float, high: float, column: Column) -> float:
    """Return the median of the sorted values in a bin, or its middle where it has none."""
    # The median and not the middle: between existing values, the model's output is a guess.
    start, stop = np.searchsorted(present, [low, high])
    if start < stop:
        return float(present[(start + stop) // 2])
    middle = (low + high) / 2
    return float(column.rounded(np.array(middle)))
