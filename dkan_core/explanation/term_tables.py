"""The terms of an additive model as tables: with the intercept, they add up to a row's log-odds.

Shape suffixes: C codes, K bins, A and B bins of a pair's columns, V rows of the model's table.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.edges import CodeEdges, code_edges
from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, NumericFeature, Preprocessor
from dkan_core.explanation.additive import TermGroup, term_groups
from dkan_core.explanation.columns import Column, source_columns
from dkan_core.explanation.grid import written_value
from dkan_core.explanation.interactions import ROUNDING, Interaction
from dkan_core.explanation.scales import written
from dkan_core.explanation.term_cells import cells_of, codes_of_values
from dkan_core.model.additive_shape import BINARY_CODES, SCORE_CODES, Term
from dkan_core.model.additive_terms import AdditiveTerms
from dkan_core.model.architecture import additive_shape
from dkan_core.utils.arrays import Float64, Int64


@dataclass(frozen=True, kw_only=True)
class TermBin:
    """Values of a column that a term has one number for."""

    kind: Literal["missing", "range", "value", "levels", "rare"]
    """A frequent value goes before the range that it is in; "rare": every category without a code."""

    name: str
    """The values in words."""

    start: float | None = None
    """The first number of a range; None where it has no lower end."""

    stop: float | None = None
    """The first number beyond a range; None where it has no upper end."""

    value: float | None = None
    """A frequent value of a number."""

    levels: list[str] | None = None
    """Categories."""

    @property
    def position(self) -> float:
        """Where a number's bin lies among the others, of which that of missing values is the first."""
        first = self.start if self.kind == "range" else self.value
        return -np.inf if first is None else first

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TermTable:
    """A term: of a column, or of a pair of them."""

    columns: tuple[str, ...]
    strength: float
    """Standard deviation of the term over the training rows, in log-odds."""

    bins: list[list[TermBin]]
    """Those of each column."""

    log_odds: list[Any]
    """What the term adds, for each bin; of a pair a list for each bin of the first column."""

    rows: list[Any]
    """Training rows, likewise; of rows with weights the sums of these, to six digits."""

    @property
    def cells(self) -> int:
        """How many numbers it has."""
        return math.prod(map(len, self.bins))

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return {**vars(self), "bins": [[each.to_dict() for each in bins] for bins in self.bins]}


def term_tables(terms: AdditiveTerms, preprocessor: Preprocessor, label: int) -> list[TermTable]:
    """Return all terms of a label, the strongest first."""
    columns = {column.name: column for column in source_columns(preprocessor)}
    table_V = terms.mean_VL[:, label]
    found = []
    for group in term_groups(terms.layout, preprocessor):
        if len(group.columns) > 1:
            found.append(_pair(group, terms, columns, table_V))
        else:
            found.append(_single(group, terms, preprocessor, columns, table_V))
    return sorted(found, key=lambda table: -table.strength)


def pairs_of(tables: Sequence[TermTable]) -> list[Interaction]:
    """Return the pairs among the terms, the strongest first; those that are 0 are left out."""
    alone = {table.columns: table.strength**2 for table in tables}
    found = []
    for table in tables:
        if len(table.columns) == 2 and table.strength > ROUNDING:
            own = table.strength**2
            first, second = table.columns
            share = own / (own + alone.get((first,), 0.0) + alone.get((second,), 0.0))
            found.append(Interaction(first=first, second=second, strength=table.strength, share=share))
    return found


def _single(
    group: TermGroup, terms: AdditiveTerms, preprocessor: Preprocessor, columns: Mapping[str, Column], table_V: Float64
) -> TermTable:
    cells = cells_of(group, terms, preprocessor)
    column, term = columns[group.columns[0]], terms.layout.terms[group.indices[0]]
    # Cells of a numeric column are its codes, then its frequent values.
    codes = np.arange(cells.first_value)
    # Categories that the term does not distinguish are among the rare ones.
    bins, kept_K = _bins(column, codes, bin_starts(terms, term, column, codes), len(codes))
    values = cells.value_C[cells.first_value :].tolist()
    bins += [TermBin(kind="value", name=written_value(column, value), value=value) for value in values]
    kept_C = np.concatenate([codes[kept_K], np.arange(cells.first_value, len(cells.code_C))])
    effect_C, weight_C = cells.effects(table_V), cells.weight_C
    order = sorted(range(len(bins)), key=lambda index: bins[index].position)
    return TermTable(
        columns=group.columns,
        strength=weighted_deviation(effect_C, weight_C),
        bins=[[bins[index] for index in order]],
        log_odds=effect_C[kept_C[order]].tolist(),
        rows=_rows(weight_C[kept_C[order]]),
    )


def _pair(group: TermGroup, terms: AdditiveTerms, columns: Mapping[str, Column], table_V: Float64) -> TermTable:
    term = terms.layout.terms[group.indices[0]]
    mains = {main.features[0]: main for main in terms.layout.mains}
    sides = []
    for name, feature in zip(group.columns, term.features, strict=True):
        # The first bin is that of missing numbers, or of rare categories.
        firsts = np.array([0, *additive_shape(terms.config).cuts_of(feature)])
        column = columns[name]
        codes = 0 if column.coded is None else column.coded.cardinality
        sides.append(_bins(column, firsts, bin_starts(terms, mains[feature], column, firsts), codes))
    kept_AB = np.ix_(*(kept for _, kept in sides))
    effect_AB, weight_AB = (each[term.rows].reshape(term.shape) for each in (table_V, terms.weight_V))
    return TermTable(
        columns=group.columns,
        strength=weighted_deviation(effect_AB.ravel(), weight_AB.ravel()),
        bins=[bins for bins, _ in sides],
        log_odds=effect_AB[kept_AB].tolist(),
        rows=_rows(weight_AB[kept_AB]),
    )


def _rows(weight_C: Float64) -> list[Any]:
    whole_C = np.rint(weight_C)
    if np.array_equal(whole_C, weight_C):
        rows_C = whole_C.astype(int)
    else:
        rows_C = np.vectorize(lambda weight: float(f"{weight:.6g}"), otypes=[float])(weight_C)
    rows: list[Any] = rows_C.tolist()
    return rows


def weighted_deviation(effect_C: Float64, weight_C: Float64) -> float:
    """Return the standard deviation of effects that have weights; 0 where no weight is above 0."""
    if not weight_C.any():
        return 0.0
    mean = np.average(effect_C, weights=weight_C)
    return float(np.sqrt(np.average(np.square(effect_C - mean), weights=weight_C)))


def _bins(column: Column, firsts: Int64, starts_K: Float64, codes: int) -> tuple[list[TermBin], npt.NDArray[np.intp]]:
    """Return the bins that begin at some codes, and their indices: no number has some of the codes of scores.

    Args:
        column: The column.
        firsts: The first code of each bin.
        starts_K: The first number of each; empty for a category.
        codes: How many codes of a category have bins.
    """
    if column.numeric is None:
        assert column.coded is not None
        stops = [*firsts[1:].tolist(), codes]
        found = [_category_bin(column.coded.names, first, stop) for first, stop in zip(firsts, stops, strict=True)]
        return found, np.arange(len(found))
    stops_K = np.append(starts_K[1:], np.inf)
    # Nothing lies between two weekdays.
    ends = (np.ceil(starts_K), np.ceil(stops_K)) if column.is_weekday else (starts_K, stops_K)
    kept_K = np.flatnonzero((firsts == 0) | (ends[0] < ends[1]))
    ranges = kept_K[1:]
    edges = np.append(starts_K[ranges], stops_K[ranges[-1]])
    names = _range_names(column, edges)
    found = [TermBin(kind="missing", name="missing")] + [
        TermBin(kind="range", name=name, start=_finite(start), stop=_finite(stop))
        for name, start, stop in zip(names, edges, edges[1:], strict=False)
    ]
    return found, kept_K


def _category_bin(names: Sequence[object], first: int, stop: int) -> TermBin:
    if first < FIRST_CODE:
        kind: Literal["missing", "rare"] = "missing" if first == MISSING else "rare"
        return TermBin(kind=kind, name=kind if kind == "missing" else "(rare)")
    levels = [str(name) for name in names[first - FIRST_CODE : stop - FIRST_CODE]]
    more = f" and {len(levels) - 1} rarer ones" if len(levels) > 1 else ""
    return TermBin(kind="levels", name=(levels[0] or "(empty)") + more, levels=levels)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _range_names(column: Column, edges: Float64) -> list[str]:
    """Return what a person calls the ranges from each edge to the next, of which the outer ones may be infinite."""
    names = []
    texts = [_edge_text(column, edges, index) for index in range(len(edges))]
    for index, (start, stop) in enumerate(itertools.pairwise(edges)):
        low, high = texts[index : index + 2]
        if column.whole and not column.is_time:
            first, last = max(np.ceil(start), column.knots[0]), min(np.ceil(stop) - 1, column.knots[-1])
            if first == last:
                names.append(written_value(column, first))
                continue
            if first < last:
                low, high = written_value(column, first), written_value(column, last)
        ends = f"{low} to {high}" if np.isfinite(start) else f"up to {high}"
        names.append(ends if np.isfinite(stop) else f"{low} and more")
    return names


def _edge_text(column: Column, edges: Float64, index: int) -> str:
    """Write an edge with so many digits that it is told from its neighbours."""
    edge = float(edges[index])
    if column.is_time and np.isfinite(edge):
        return written_value(column, edge)
    gap = np.abs(np.delete(edges, index) - edge).min()
    if not edge or not np.isfinite(gap):
        return written(edge) if np.isfinite(edge) else ""
    digits = math.floor(math.log10(abs(edge))) - math.floor(math.log10(gap)) + 2
    return f"{edge:{',' if abs(edge) >= 10_000 else ''}.{max(3, digits)}g}"


def bin_starts(terms: AdditiveTerms, term: Term, column: Column, firsts: Int64) -> Float64:
    """Return the first number of bins of a column; none of a category.

    Args:
        terms: Those of the model.
        term: The column's own one.
        column: The column.
        firsts: The first row of each bin among those of the term; one beyond them is beyond all numbers.
    """
    if column.numeric is None:
        return np.empty(0)
    if term.size == BINARY_CODES:
        upper = additive_shape(terms.config).upper[terms.layout.binary.index(term)]
        firsts = np.array([0, 1, upper, SCORE_CODES])[firsts]
    return first_values(column.numeric, firsts)


def first_values(feature: NumericFeature, codes_C: Int64) -> Float64:
    """Return the smallest number whose score has at least some code; infinite if all numbers or none have it."""
    found = code_edges(feature, np.dtype(np.float64))
    if found is None:
        # The distance of knots may overflow, so the code of a knot decides.
        codes = codes_of_values(np.array(feature.knots), feature).astype(np.uint8)
        found = CodeEdges(np.array(feature.knots[1:]), codes)
    starts = np.concatenate([[-np.inf], found.edges, [np.inf]])
    return starts[np.searchsorted(found.codes, codes_C)]
