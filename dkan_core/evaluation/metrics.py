"""Metrics of binary and multi-label classifiers, exact to the last row.

Labels are uint8: 0, 1, or 255 for "not measured", which is left out everywhere. Scores are probabilities; a row
is an alert at a threshold when its score is at or above it. Everything returned is plain Python and finite, so
that it can go into JSON as it is.

scikit-learn has the scalars, too, and the tests hold ours against its; but each of its functions sorts or copies all
rows again, where here one sort serves all scalars and curves. For 10 million rows of one label, measured in seconds of
CPU time and MB at the peak: all scalars here, with the sort, 0.7 and 250; there average precision 3.2 and 600, ROC
AUC 4.0 and 650, log loss 2.2 and 1,000, Brier score 0.5 and 620 (both of these here: 0.1 and 220), confusion matrix
0.5 and 210 (here 0.02 and 30). Its average precision differs in the last bit, and early stopping could choose another
model by that.

Shape suffixes: N rows, L labels, P positive rows, M negative rows, T thresholds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.utils.arrays import Array

# Weight of the overall rate, in rows, towards which the rate of a cell is shrunk.
SHRINKAGE = 2.0
# The smallest power of ten that float32 can still subtract from 1. A row that is surely wrong then costs 16, not
# infinity.
LOG_LOSS_CLIP = 1e-7
# The metrics that ``metrics.json`` has for each label and as a mean, with their names on pages.
METRIC_NAMES = {
    "average_precision": "Average precision",
    "roc_auc": "ROC AUC",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "prevalence": "Prevalence",
}
# Suffix of a metric without weights, where rows have weights.
UNWEIGHTED = "_unweighted"


@dataclass(frozen=True)
class Ranking:
    """The scores of each class, ascending: with them every count above a threshold is one binary search.

    Sorting the two classes by value is faster than one argsort of all rows, and needs no index array.
    """

    positives_P: Array
    negatives_M: Array
    positive_mass: Array | None = None
    """Weight of each positive and of those after it, and a 0; (P + 1,). None where every row counts alike."""

    negative_mass: Array | None = None

    @property
    def positives(self) -> float:
        """Number of positives, or their total weight."""
        return self.positives_P.size if self.positive_mass is None else float(self.positive_mass[0])

    @property
    def negatives(self) -> float:
        """Number of negatives, or their total weight."""
        return self.negatives_M.size if self.negative_mass is None else float(self.negative_mass[0])

    @property
    def rows(self) -> int:
        """Number of measured rows, without those of weight 0."""
        return self.positives_P.size + self.negatives_M.size

    @property
    def has_both_classes(self) -> bool:
        """Whether average precision and ROC AUC are defined."""
        return bool(self.positives_P.size and self.negatives_M.size)

    def counts(self, thresholds_T: Array) -> tuple[Array, Array]:
        """Count, or weigh, the true and the false positives at each threshold.

        Shape:
            - Input: ``(T,)``
            - Output: two of ``(T,)``, int64, or float64 for weights
        """
        true_T = _from(self.positives_P, self.positive_mass, thresholds_T)
        false_T = _from(self.negatives_M, self.negative_mass, thresholds_T)
        return true_T, false_T

    def alerts_at(self, threshold: float) -> tuple[float, float]:
        """Count, or weigh, the true and the false positives at one threshold."""
        (true,), (false,) = self.counts(np.array([threshold], self.positives_P.dtype))
        return true.item(), false.item()

    def alert_thresholds(self, alerts: Iterable[int]) -> Array:
        """Return the score of the ``k``-th highest row for each ``k`` of ``alerts`` (1 to ``rows``)."""
        indices = [self.rows - count for count in alerts]
        scores_N = np.concatenate([self.positives_P, self.negatives_M])
        scores_N.partition(indices)
        return scores_N[indices]


def _from(sorted_K: Array, mass: Array | None, thresholds_T: Array) -> Array:
    """Return how many values are at or above each threshold, or their weight."""
    indices_T = np.searchsorted(sorted_K, thresholds_T)
    at_or_above_T: Array = sorted_K.size - indices_T if mass is None else mass[indices_T]
    return at_or_above_T


def rank_scores(labels_N: Array, scores_N: Array, weight_N: Array | None = None) -> Ranking:
    """Sort the measured scores by class; arrays of more dimensions are pooled, a weight is that of a whole row.

    Rows of weight 0 are left out: they count for nothing.

    Raises:
        ValueError: The shapes differ, or a measured score is not finite.
    """
    labels, scores = np.asarray(labels_N), np.asarray(scores_N)
    if labels.shape != scores.shape:
        raise ValueError(f"labels and scores must have one shape, got {labels.shape} and {scores.shape}")
    weight = None
    if weight_N is not None:
        weight = np.broadcast_to(weight_N.reshape(-1, *[1] * (labels.ndim - 1)), labels.shape)
    by_class, masses = [], []
    for value in (1, 0):
        rows = labels == value if weight is None else (labels == value) & (weight > 0)
        chosen = scores[rows]
        if weight is None:
            chosen.sort()
        else:
            order = np.argsort(chosen)
            chosen = chosen[order]
            masses.append(np.append(np.cumsum(weight[rows][order][::-1], dtype=np.float64)[::-1], 0.0))
        # sort() puts NaN and inf last and -inf first, so it is enough to check both ends
        if chosen.size and not np.isfinite(chosen[[0, -1]]).all():
            raise ValueError(f"scores must be finite, got {chosen[0]} to {chosen[-1]}")
        by_class.append(chosen)
    return Ranking(*by_class, *masses)


def average_precision(labels_N: Array, scores_N: Array) -> float:
    """Return the step-wise sum of precision over recall; equal scores are one threshold.

    Equals ``sklearn.metrics.average_precision_score``; nan where there is no positive.

    >>> average_precision(np.array([0, 1, 255, 1], np.uint8), np.array([0.1, 0.3, 0.5, 0.2]))
    1.0
    """
    return _average_precision(rank_scores(labels_N, scores_N))


def macro_average_precision(labels_NL: Array, scores_NL: Array, weight_N: Array | None = None) -> float:
    """Return the mean of the labels' average precision over those with both classes measured; nan without any.

    Shape:
        - Input: ``(N, L)``, ``(N, L)``, and ``(N,)`` where rows have weights
    """
    columns = range(labels_NL.shape[1])
    rankings = [rank_scores(labels_NL[:, index], scores_NL[:, index], weight_N) for index in columns]
    mean = _mean(_average_precision(ranking) for ranking in rankings if ranking.has_both_classes)
    return float("nan") if mean is None else mean


def mean_log_loss(labels_NL: Array, log_odds_NL: Array, weight_N: Array | None = None) -> float:
    """Return the mean binary cross-entropy over the measured cells, each weighted as its row; nan where none counts.

    Unlike the log loss of probabilities it is not cut off: it is finite wherever log-odds are.

    Shape:
        - Input: ``(N, L)``, ``(N, L)``, and ``(N,)`` where rows have weights

    >>> round(mean_log_loss(np.array([[0, 255], [1, 1]], np.uint8), np.zeros((2, 2))), 4)
    0.6931
    """
    measured_NL = labels_NL != NOT_MEASURED
    mass_NL = measured_NL if weight_N is None else measured_NL * weight_N[:, None].astype(np.float64)
    total = float(mass_NL.sum(dtype=np.float64))
    if not total:
        return float("nan")
    # The log-odds of the class that the row does not have.
    wrong_NL = np.where(labels_NL == 1, -log_odds_NL, log_odds_NL)
    return float(np.sum(np.logaddexp(0, wrong_NL) * mass_NL, dtype=np.float64) / total)


def _distinct(sorted_K: Array) -> Array:
    return sorted_K[np.concatenate([[True], sorted_K[1:] != sorted_K[:-1]])] if sorted_K.size else sorted_K


def _average_precision(ranking: Ranking) -> float:
    if ranking.positives_P.size == 0:
        return float("nan")
    # recall changes only at positives: other thresholds add nothing to the sum
    true_T, false_T = ranking.counts(_distinct(ranking.positives_P))
    gained_T = true_T - np.append(true_T[1:], 0)
    return float(np.sum(gained_T * (true_T / (true_T + false_T))) / ranking.positives)


def _roc_auc(ranking: Ranking) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties counting one half."""
    if ranking.positive_mass is not None and ranking.negative_mass is not None:
        return _weighted_roc_auc(ranking.positives_P, ranking.negatives_M, ranking.positive_mass, ranking.negative_mass)
    # float64, because there are P * M pairs, which may exceed the 9e18 of int64.
    below = np.searchsorted(ranking.negatives_M, ranking.positives_P, side="left").sum(dtype=np.float64)
    at_or_below = np.searchsorted(ranking.negatives_M, ranking.positives_P, side="right").sum(dtype=np.float64)
    return float((below + at_or_below) / 2 / ranking.positives_P.size / ranking.negatives_M.size)


def _weighted_roc_auc(positives_P: Array, negatives_M: Array, positive_mass: Array, negative_mass: Array) -> float:
    """Return the weighted share of correctly ordered pairs; the weight of a pair is the product of both weights."""
    total = negative_mass[0]
    below_P = total - negative_mass[np.searchsorted(negatives_M, positives_P, side="left")]
    at_or_below_P = total - negative_mass[np.searchsorted(negatives_M, positives_P, side="right")]
    weight_P = -np.diff(positive_mass)
    return float(np.sum(weight_P / positive_mass[0] * ((below_P + at_or_below_P) / 2 / total)))


def _scalars(ranking: Ranking) -> dict[str, Any]:
    """Return the metrics of one label; None where the measured rows do not define one."""
    if ranking.rows == 0:
        return {**dict.fromkeys(METRIC_NAMES), "rows": 0}
    both = ranking.has_both_classes
    # the probability of the class that the row does not have
    wrong_N = np.concatenate([1.0 - ranking.positives_P.astype(np.float64), ranking.negatives_M])
    weight_N = None
    if ranking.positive_mass is not None and ranking.negative_mass is not None:
        weight_N = -np.concatenate([np.diff(ranking.positive_mass), np.diff(ranking.negative_mass)])
    brier = float(np.average(np.square(wrong_N), weights=weight_N))
    np.clip(wrong_N, LOG_LOSS_CLIP, 1.0 - LOG_LOSS_CLIP, out=wrong_N)
    return {
        "average_precision": _average_precision(ranking) if both else None,
        "roc_auc": _roc_auc(ranking) if both else None,
        "log_loss": float(-np.average(np.log1p(-wrong_N), weights=weight_N)),
        "brier": brier,
        "prevalence": ranking.positives / (ranking.positives + ranking.negatives),
        "rows": ranking.rows,
    }


def compute_metrics(
    labels_NL: Array, probabilities_NL: Array, names: Sequence[str], weight_N: Array | None = None
) -> dict[str, Any]:
    """Compute the metrics of every label and their macro means.

    A label of one class only has None for average precision and ROC AUC and is left out of their means. Where rows have
    weights, every metric has them, and the same without them is beside it, as ``average_precision_unweighted``.

    Args:
        labels_NL: 0, 1 or 255 (not measured).
        probabilities_NL: What a model gives.
        names: The labels.
        weight_N: Weights of the rows. Default: every row counts alike.

    Shape:
        - Input: ``(N, L)``, ``(N, L)``, ``(N,)``

    Returns:
        ``average_precision``, ``roc_auc``, ``log_loss``, ``brier``, ``prevalence`` (means over the labels that
        define them, else None), ``average_precision_micro`` (all measured cells pooled), ``rows`` (N), and
        ``labels``: the same per name, with the measured rows.

    Raises:
        ValueError: The shapes differ, a measured probability is not finite, or ``names`` does not fit.

    >>> metrics = compute_metrics(np.array([[0], [1]], np.uint8), np.array([[0.2], [0.6]]), ["active"])
    >>> metrics["average_precision"], metrics["prevalence"], metrics["labels"]["active"]["rows"]
    (1.0, 0.5, 2)
    """
    shape = (len(labels_NL), len(names))
    if labels_NL.shape != shape or probabilities_NL.shape != shape:
        raise ValueError(
            f"labels and probabilities must be {shape[0]} rows x {shape[1]} labels, "
            f"got {labels_NL.shape} and {probabilities_NL.shape}"
        )
    by_name = {
        name: _scalars(rank_scores(labels_NL[:, index], probabilities_NL[:, index], weight_N))
        for index, name in enumerate(names)
    }
    # With one label, pooling gives that label: no second sort.
    if len(names) == 1:
        micro = by_name[names[0]]["average_precision"]
    else:
        pooled = rank_scores(labels_NL, probabilities_NL, weight_N)
        micro = _average_precision(pooled) if pooled.has_both_classes else None
    means = {key: _mean(values[key] for values in by_name.values()) for key in METRIC_NAMES}
    found = {**means, "rows": len(labels_NL), "average_precision_micro": micro, "labels": by_name}
    return found if weight_N is None else _beside(found, compute_metrics(labels_NL, probabilities_NL, names))


def _beside(weighted: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Return weighted metrics and, beside them, the unweighted metrics of the same rows."""
    names = {name: f"{name}{UNWEIGHTED}" for name in (*METRIC_NAMES, "average_precision_micro")}
    labels = {
        label: {**values, **{names[key]: plain["labels"][label][key] for key in METRIC_NAMES}}
        for label, values in weighted["labels"].items()
    }
    return {**weighted, **{names[key]: plain[key] for key in names}, "labels": labels}


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def finite_numbers(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """Return those of some metrics that are finite numbers.

    >>> finite_numbers({"average_precision": 0.5, "rows": 20, "split": "test", "is_raw": False, "roc_auc": None})
    {'average_precision': 0.5, 'rows': 20}
    """
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def best_f1_threshold(labels_N: Array, scores_N: Array, weight_N: Array | None = None) -> float:
    """Return the threshold of the highest F1, the higher one of two equals; 0.5 where there is no positive.

    It lies halfway between two scores, or between the lowest one and 0, so that rounding differences, as on another
    device, do not move a row across it.

    >>> best_f1_threshold(np.array([0, 0, 1, 1], np.uint8), np.array([0.1, 0.2, 0.3, 0.9]))
    0.25
    """
    ranking = rank_scores(labels_N, scores_N, weight_N)
    if ranking.positives_P.size == 0:
        return 0.5
    # F1 can peak only at a positive's score: one more negative never raises it.
    # Falling, so that the first of several maxima is the highest threshold.
    thresholds_T = _distinct(ranking.positives_P)[::-1]
    true_T, false_T = ranking.counts(thresholds_T)
    f1_T = 2 * true_T / (true_T + false_T + ranking.positives)
    accepted = thresholds_T[np.argmax(f1_T)]
    below = max(scores_K[scores_K < accepted].max(initial=0) for scores_K in (ranking.positives_P, ranking.negatives_M))
    halfway = (float(accepted) + float(below)) / 2
    # If no float lies between the two scores, the accepted score itself is the threshold.
    return halfway if accepted.dtype.type(halfway) > below else float(accepted)


def positive_rates(cells_N: Array, labels_N: Array, cells: int) -> Array:
    """Return the rate of positives in each cell, shrunk towards that of all rows.

    Args:
        cells_N: Numbers from 0 to ``cells`` - 1.
        labels_N: 0 or 1.
        cells: How many there are.

    Shape:
        - Output: ``(cells,)``
    """
    rows_C = np.bincount(cells_N, minlength=cells)
    ones_C = np.bincount(cells_N, labels_N, cells)
    mean = ones_C.sum() / max(1, len(labels_N))
    rates: Array = (ones_C + SHRINKAGE * mean) / (rows_C + SHRINKAGE)
    return rates
