"""How much a column counts: in log-odds, and in the average precision that is lost without it.

Shape suffixes: N rows, L labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.explanation.columns import Column, Rows, redrawn
from dkan_core.explanation.response import Response, affordable_rows, row_count
from dkan_core.utils.arrays import Array, Float64

Advance = Callable[[int], None]

# Fewer than elsewhere (64), as the strongest columns are measured again on more rows, and 1,024 sparse columns of a
# fingerprint then take seconds.
LEAST_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How much one source column counts for a label, or in the mean over labels."""

    name: str
    kind: str
    """numeric, category or ids."""

    effect: float
    """How far the log-odds move when the column is redrawn: ``sqrt(mean((f(x) - f(x'))**2) / 2)``."""

    effect_error: float
    """Standard error of ``effect`` over rows."""

    effect_rows: int
    """Rows, of those whose value changed, that ``effect`` was measured on."""

    precision_drop: float | None = None
    """Average precision lost when the column is shuffled; None where it was not measured."""

    precision_drop_error: float | None = None
    """Standard error of ``precision_drop`` over shuffles."""

    slope: float | None = None
    """Gradient times spread: the mean absolute gradient of the log-odds by the column's normal score, times the score's
    standard deviation; None for categories, whose codes have no gradient, and where it was not measured."""


def measure_effects(
    response: Response, columns: Sequence[Column], *, cells: float, seed: int, advance: Advance
) -> list[list[Importance]]:
    """Measure the effect of every column on each label that the answers have; one pass serves all.

    ``x'`` is the row with the column's value exchanged for that of a random other row. The effect is then the standard
    deviation of the log-odds that the column answers for, alone and together with others: the total effect of Sobol's
    analysis of variance in Jansen's form (Saltelli et al. 2010, doi:10.1016/j.cpc.2009.09.018). It is one definition,
    in one unit, for numbers and categories, and needs no gradient, which says nothing about codes and 0/1 columns.

    Only rows whose value changes are scored, as the others do not move.

    Args:
        response: The model's.
        columns: The columns to measure; the importances have the same order.
        cells: Values to read, at most.
        seed: Decides whose value a row is given.
        advance: Called with 1 after each column.
    """
    few = affordable_rows(response.arrays, len(columns), cells, least=LEAST_ROWS)
    return _effects(response, columns, few, seed, advance)


def rank_by_effect(
    response: Response,
    columns: Sequence[Column],
    measured: Sequence[Importance],
    *,
    top: int,
    cells: float,
    seed: int,
) -> list[Importance]:
    """Return the effect of every column, the largest first.

    Where ``measure_effects`` could afford a part of the rows only, the ``2 * top`` best columns are measured on more.

    Args:
        response: The model's, of one label.
        columns: The columns to rank.
        measured: What ``measure_effects`` has found of them.
        top: How many of them are of interest.
        cells: Values to read, at most.
        seed: Decides whose value a row is given.
    """
    few = affordable_rows(response.arrays, len(columns), cells, least=LEAST_ROWS)
    # Twice as many as wanted, in case a few rows ranked a column too low.
    many = affordable_rows(response.arrays, 2 * top, cells, least=LEAST_ROWS)
    ranked = sorted(zip(measured, columns, strict=True), key=lambda pair: -pair[0].effect)
    if many > few:
        again = [column for _, column in ranked[: 2 * top]]
        (better,) = _effects(response, again, many, seed, lambda _: None)
        rest = [importance for importance, _ in ranked[2 * top :]]
        return sorted(better, key=lambda importance: -importance.effect) + rest
    return [importance for importance, _ in ranked]


def _effects(
    response: Response, columns: Sequence[Column], rows: int, seed: int, advance: Advance
) -> list[list[Importance]]:
    """Measure each column on ``rows`` of those rows whose value changes, for each label; the others do not move."""
    total = row_count(response.arrays)
    changed, changes = {}, []
    for column in columns:
        changed_M, cells = redrawn(response.arrays, column, _orders(seed, column, total, 1)[0])
        changed[column.name] = len(changed_M) / total
        changes.append((changed_M[:rows], [(column, cells[slice(rows)])]))
    found: list[list[Importance]] = [[] for _ in range(response.log_odds_NL.shape[1])]
    for column, (chosen, _), after_ML in zip(columns, changes, response.to_changes(changes), strict=True):
        # Halved, as both the row's own value and the exchanged one are random.
        squares_ML = np.square(after_ML - response.log_odds_NL[chosen]) / 2
        for of_label, squares_M in zip(found, squares_ML.T, strict=True):
            effect, error = _root_mean(squares_M, changed[column.name], total) if len(chosen) else (0.0, 0.0)
            rows_read = len(chosen)
            of_label.append(
                Importance(name=column.name, kind=column.kind, effect=effect, effect_error=error, effect_rows=rows_read)
            )
        advance(1)
    return found


def _root_mean(squares_N: Float64, share: float, total: int) -> tuple[float, float]:
    """Return the root of the mean over all rows, and its standard error; those that did not change are zero."""
    root = float(np.sqrt(share * squares_N.mean()))
    parts_N = squares_N * (0.5 / root if root else 0.0)
    variance = share**2 * parts_N.var() / len(parts_N) + share * (1 - share) * parts_N.mean() ** 2 / total
    return root, float(np.sqrt(variance))


def _orders(seed: int, column: Column, rows: int, count: int) -> list[Rows]:
    """Return permutations that depend on nothing but seed, column and rows."""
    # Seeded by name, not by position, so that an additional column does not change the results of the others.
    generator = np.random.Generator(np.random.PCG64([seed, *column.name.encode()]))
    return [generator.permutation(rows) for _ in range(count)]


def add_precision_drops(
    response: Response,
    labels_NL: Array,
    weight_N: Array | None,
    ranked: Sequence[Importance],
    columns: Sequence[Column],
    *,
    shuffles: int,
    cells: float,
    seed: int,
    advance: Advance,
) -> list[Importance]:
    """Return the importances with the permutation importance (Breiman 2001) of ``columns`` filled in.

    It is the mean over a few shuffles of the average precision lost, averaged over the labels with both classes.

    Args:
        response: The model's.
        labels_NL: Labels of its rows, those that it gives log-odds of.
        weight_N: Weights of the rows; None where all count alike.
        ranked: The importances to fill in.
        columns: The columns to shuffle.
        shuffles: How often each is shuffled.
        cells: Values to read, at most.
        seed: Decides the shuffles.
        advance: Called with 1 after each column.
    """
    rows = affordable_rows(response.arrays, len(columns) * shuffles, cells)
    labels_NL, weight_N = labels_NL[:rows], None if weight_N is None else weight_N[:rows]
    before = macro_average_precision(labels_NL, response.log_odds_NL[:rows], weight_N)
    if np.isnan(before):
        return list(ranked)
    drops: dict[str, list[float]] = {}
    for column in columns:
        drops[column.name] = [
            before - macro_average_precision(labels_NL, _shuffled(response, column, order_N), weight_N)
            for order_N in _orders(seed, column, rows, shuffles)
        ]
        advance(1)
    return [
        replace(
            importance,
            precision_drop=float(np.mean(drops[importance.name])),
            precision_drop_error=float(np.std(drops[importance.name], ddof=1) / np.sqrt(shuffles)),
        )
        if importance.name in drops
        else importance
        for importance in ranked
    ]


def _shuffled(response: Response, column: Column, order_N: Rows) -> Float64:
    """Return the log-odds of the first rows with a column shuffled."""
    shuffled_NL = response.log_odds_NL[: len(order_N)].copy()
    changed_M, cells = redrawn(response.arrays, column, order_N)
    shuffled_NL[changed_M] = response.to_changed(changed_M, [(column, cells)])
    return shuffled_NL


def mean_importance(rankings: Sequence[list[Importance]]) -> list[Importance]:
    """Return the means over labels of the importance of every column, the largest first; of one label, its importances.

    The loss of average precision is left out of the means, as it is measured for other columns of each label.
    """
    if len(rankings) == 1:
        return rankings[0]
    by_name: dict[str, list[Importance]] = {}
    for ranking in rankings:
        for importance in ranking:
            by_name.setdefault(importance.name, []).append(importance)
    means = [_mean(together) for together in by_name.values()]
    return sorted(means, key=lambda importance: -importance.effect)


def _mean(together: Sequence[Importance]) -> Importance:
    slopes = [importance.slope for importance in together if importance.slope is not None]
    return Importance(
        name=together[0].name,
        kind=together[0].kind,
        effect=float(np.mean([importance.effect for importance in together])),
        # All labels are measured on the same rows, so their errors are correlated: the mean is an upper bound.
        effect_error=float(np.mean([importance.effect_error for importance in together])),
        effect_rows=min(importance.effect_rows for importance in together),
        slope=float(np.mean(slopes)) if slopes else None,
    )
