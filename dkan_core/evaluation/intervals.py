"""Intervals of average precision and ROC AUC, by the Poisson bootstrap over rows.

Each replicate gives every row a weight drawn from a Poisson distribution of mean 1. Rows are sorted once, into bins of
neighbouring scores. A replicate draws the counts of both classes in each bin, since sums of Poisson counts are Poisson
counts, and so costs the same whatever the number of rows. Two models on the same rows get the same weights: counts are
drawn for cells, the rows in one bin of the first model and one bin of the other. Intervals are widened according to the
rows of the rarer class, as bootstrap intervals of few rows are too narrow (Hesterberg 2015, What teachers should know
about the bootstrap).

The bounds of a metric lie about two standard errors of the bootstrap on either side of it, on the logit scale: near 1,
percentiles of the replicates are too high. Those of a difference, which has no such limit nearby, are percentiles.

Labels are 0, 1 or 255 (not measured), scores are probabilities; without weights, every row counts alike.

Shape suffixes: N rows, C cells, K bins.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtr, stdtrit

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.utils.arrays import Array

# Nineteen of twenty such intervals hold the value that unlimited rows like these would give.
CONFIDENCE = 0.95
# With so many replicates, the bounds are off by some 5% of the interval's width.
REPLICATES = 400
# Bins for one model, and for each of two. With fewer positives than bins, a bin has at most one positive, and average
# precision is exact.
BINS, PAIRED_BINS = 1024, 192
# The metrics that have intervals, in the order of the arrays.
KEYS = ("average_precision", "roc_auc")
# Suffix of the keys of intervals, after the name of a metric.
INTERVAL = "_interval"

Interval = list[float]


def metric_intervals(labels_N: Array, scores_N: Array, weight_N: Array | None = None) -> list[Interval | None]:
    """Return the offsets of the bounds from average precision and from ROC AUC.

    None where the rows do not define the metric, or it is the same in every replicate, as when every positive is ranked
    above every negative.
    """
    replicates = _replicates(labels_N, [scores_N], weight_N, BINS)
    if replicates is None:
        return [None] * len(KEYS)
    errors = _standard_errors(_rarer_rows(labels_N, weight_N))
    return [_logit_bounds(each, errors) for each in replicates[0]]


def difference_intervals(
    labels_N: Array, scores_N: Array, other_N: Array, weight_N: Array | None = None
) -> list[Interval | None]:
    """Return the offsets of the bounds from the differences of a model's metrics to another's on the same rows."""
    replicates = _replicates(labels_N, [scores_N, other_N], weight_N, PAIRED_BINS)
    if replicates is None:
        return [None] * len(KEYS)
    errors = _standard_errors(_rarer_rows(labels_N, weight_N))
    return [_percentiles(each, errors) for each in replicates[0] - replicates[1]]


def add_intervals(
    metrics: dict[str, Any], labels_NL: Array, probabilities_NL: Array, weight_N: Array | None = None
) -> None:
    """Add intervals to the metrics, from ``compute_metrics``, of each label, and at the top if there is only one."""
    for index, values in enumerate(metrics["labels"].values()):
        found = metric_intervals(labels_NL[:, index], probabilities_NL[:, index], weight_N)
        for key, offsets in zip(KEYS, found, strict=True):
            values[key + INTERVAL] = around(values[key], offsets, low=0.0)
            if len(metrics["labels"]) == 1:
                metrics[key + INTERVAL] = values[key + INTERVAL]


def difference_to(
    metrics: Mapping[str, Any],
    previous: Mapping[str, Any],
    labels_NL: Array,
    ours_NL: Array,
    theirs_NL: Array,
    weight_N: Array | None = None,
) -> dict[str, Interval | None]:
    """Return an interval of the difference of each metric, the model's less the earlier model's, of a single label.

    Nothing where there are several labels.
    """
    if labels_NL.shape[1] > 1 or metrics["average_precision"] is None:
        return {}
    found = difference_intervals(labels_NL[:, 0], ours_NL[:, 0], theirs_NL[:, 0], weight_N)
    return {
        key: around(metrics[key] - previous[key], offsets, low=-1.0) for key, offsets in zip(KEYS, found, strict=True)
    }


def around(value: float | None, offsets: Interval | None, *, low: float) -> Interval | None:
    """Return the bounds of an interval around a value, cut at the bounds of the metric: ``low`` and 1."""
    if value is None or offsets is None:
        return None
    return [max(low, value + offsets[0]), min(1.0, value + offsets[1])]


def rate_interval(positives: float, rows: float) -> tuple[float, float]:
    """Return an interval of a rate (Wilson 1927); unlike a bootstrap's it has a width if all rows are of one class.

    >>> [round(bound, 3) for bound in rate_interval(0, 20)]
    [0.0, 0.161]
    """
    z = 1.96  # of 95%
    share, spread = positives / rows, z * z / rows
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * np.sqrt(share * (1 - share) / rows + spread / rows / 4)
    # Rounding must not move the bound of a rate of 0 or 1 away from it.
    return min(share, max(0.0, float(middle - half))), max(share, min(1.0, float(middle + half)))


def _rarer_rows(labels_N: Array, weight_N: Array | None) -> float:
    """Return the rows of the rarer class; with weights, the effective number of rows of equal weight (Kish)."""
    weights = np.ones(len(labels_N)) if weight_N is None else weight_N.astype(np.float64)
    sums = ((weights[labels_N == value].sum(), np.square(weights[labels_N == value]).sum()) for value in (0, 1))
    return min(float(total * total / squares) if squares else 0.0 for total, squares in sums)


def _standard_errors(rows: float) -> float:
    """Return how many standard errors each bound is away, for so many rows of the rarer class.

    >>> [round(_standard_errors(rows), 2) for rows in (1, 2, 5, 20, 100, 10_000)]
    [inf, 17.97, 3.1, 2.15, 1.99, 1.96]
    """
    if rows <= 1:
        return math.inf
    # The t quantile, corrected for a variance that is divided by the rows and not by one less.
    return float(np.sqrt(rows / (rows - 1)) * -stdtrit(rows - 1, (1 - CONFIDENCE) / 2))


def _logit_bounds(replicates: Array, errors: float) -> Interval | None:
    """Return the offsets of the bounds from a metric, given that of the rows and that of each replicate."""
    value, spread = replicates[0], np.nanstd(replicates[1:])
    if not spread > 0 or not 0 < value < 1:
        return None
    half = errors * spread / (value * (1 - value))  # the derivative of the logit
    bounds: Interval = (expit(logit(value) + half * np.array([-1, 1])) - value).tolist()
    return bounds


def _percentiles(differences: Array, errors: float) -> Interval:
    """Return the offsets of the bounds from a difference, given that of the rows and that of each replicate."""
    deviations, tail = differences[1:] - differences[0], float(ndtr(-errors))
    # A replicate without rows of one class has no metrics and is left out.
    measured = deviations[~np.isnan(deviations)]
    found: Interval = np.quantile(measured, [tail, 1 - tail]).tolist() if len(measured) else [0.0, 0.0]
    return found


def _replicates(labels_N: Array, scores: Sequence[Array], weight_N: Array | None, bins: int) -> Array | None:
    """Return the metrics of the rows, and those of each replicate.

    Shape:
        - Output: ``(models, len(KEYS), 1 + REPLICATES)``; None where a class has no row
    """
    rows = labels_N != NOT_MEASURED if weight_N is None else (labels_N != NOT_MEASURED) & (weight_N > 0)
    positive_N = labels_N[rows] == 1
    if positive_N.all() or not positive_N.any():
        return None
    bins_of = [_bin(values_N[rows], positive_N, bins) for values_N in scores]
    cell_N = positive_N.astype(np.int64)
    for bin_N in bins_of:
        cell_N = cell_N * (bins + 1) + bin_N
    cells_C, first_C, cell_N = np.unique(cell_N, return_index=True, return_inverse=True)
    mass = np.ones(len(cell_N)) if weight_N is None else weight_N[rows].astype(np.float64)
    sum_C, square_C = (np.bincount(cell_N, values_N, len(cells_C)) for values_N in (mass, mass * mass))
    # Model the cell as so many rows of equal weight, with the same mean and variance.
    unit_C, count_C = square_C / sum_C, sum_C * sum_C / square_C
    of_class = positive_N[first_C] * (bins + 1)
    targets = [of_class + bin_N[first_C] for bin_N in bins_of]
    random = np.random.default_rng(0)  # fixed: the same rows give the same interval
    found: Array = np.empty((len(scores), len(KEYS), 1 + REPLICATES))
    for replicate in range(1 + REPLICATES):
        drawn_C = random.poisson(count_C) * unit_C if replicate else sum_C
        for model, target_C in enumerate(targets):
            found[model, :, replicate] = _binned_metrics(np.bincount(target_C, drawn_C, 2 * (bins + 1)))
    return found


def _bin(scores_N: Array, positive_N: Array, bins: int) -> Array:
    """Return the bin of each score, 0 to ``bins``; each begins at a positive, where average precision moves.

    With few positives, each has a bin, so that no negative above a positive counts as equal to it in the ROC AUC.
    """
    ranked = np.unique(scores_N[positive_N])
    edges_K = ranked[np.unique(np.arange(bins) * len(ranked) // bins)]
    if 2 * len(edges_K) <= bins:
        edges_K = np.union1d(edges_K, np.nextafter(edges_K, np.inf, dtype=edges_K.dtype))
    return np.searchsorted(edges_K, scores_N, side="right")


def _binned_metrics(mass_2K: Array) -> tuple[float, float]:
    """Return average precision and ROC AUC, given the weight of negatives, then of positives, in each rising bin."""
    negative_K, positive_K = mass_2K.reshape(2, -1)[:, ::-1]
    true_K, false_K = np.cumsum(positive_K), np.cumsum(negative_K)
    positives, negatives = true_K[-1], false_K[-1]
    if not positives or not negatives:
        return float("nan"), float("nan")
    filled = positive_K > 0
    precision_K = true_K[filled] / (true_K[filled] + false_K[filled])
    precision = float(np.sum(positive_K[filled] * precision_K) / positives)
    below_K = negatives - false_K + negative_K / 2
    return precision, float(np.sum(positive_K * below_K) / positives / negatives)
