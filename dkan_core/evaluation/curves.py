"""Curves and tables of a classifier for its report: ROC, precision and recall, calibration, thresholds.

They are made of a ``Ranking`` of probabilities; as in ``evaluation.metrics``, a row is an alert at a threshold when its
score is at or above it. What is returned is plain Python and finite.

Shape suffixes: N rows, K sorted values, T thresholds.
"""

from typing import Any

import numpy as np

from dkan_core.evaluation.metrics import Ranking
from dkan_core.utils.arrays import Array

# Shares of rows to alert on: from what a team can review one by one to what only a campaign can handle.
ALERT_RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)

# Number of thresholds to choose from: half a percent of a class apart.
EXPLORED = 400

# Bins of the histogram of scores.
HISTOGRAM_BINS = 40

# Most points of a curve.
ROC_POINTS = GAIN_POINTS = 200
RECALL_POINTS = 400


def _spread(sorted_K: Array, limit: int) -> Array:
    """Pick at most ``limit`` evenly ranked values, both ends among them."""
    return sorted_K[np.linspace(0, sorted_K.size - 1, min(limit, sorted_K.size)).astype(np.int64)]


def roc_points(ranking: Ranking) -> tuple[list[float], list[float], list[float]]:
    """Return (false positive rate, true positive rate, threshold) from (0, 0) to (1, 1).

    At most ``ROC_POINTS``, evenly spread over both rates, each exact. The first threshold, where nothing is an
    alert, is 1.0 and not infinite. Three empty lists where only one class was measured.
    """
    if not ranking.has_both_classes:
        return [], [], []
    # Half of the points are scores of each class: with few positives, evenly ranked rows would rarely be one.
    share = (ROC_POINTS - 1) // 2
    picked = np.concatenate([_spread(ranking.positives_P, share), _spread(ranking.negatives_M, share)])
    thresholds_T = np.unique(picked)[::-1]
    true_T, false_T = ranking.counts(thresholds_T)
    return (
        [0.0, *(false_T / ranking.negatives_M.size).tolist()],
        [0.0, *(true_T / ranking.positives_P.size).tolist()],
        [1.0, *thresholds_T.tolist()],
    )


def precision_recall_points(ranking: Ranking) -> tuple[list[float], list[float], list[float]]:
    """Return (recall, precision, threshold) with recall rising to 1.

    At most ``RECALL_POINTS``, evenly spread over recall, each exact; the last alerts on every row. Three empty
    lists where there is no positive.
    """
    if ranking.positives_P.size == 0:
        return [], [], []
    picked = np.concatenate([_spread(ranking.positives_P, RECALL_POINTS - 1), ranking.negatives_M[:1]])
    thresholds_T = np.unique(picked)[::-1]
    true_T, false_T = ranking.counts(thresholds_T)
    # keep thresholds that find more positives, and the last one, which alerts on every row
    kept_T = np.append(np.diff(true_T, prepend=0)[:-1] > 0, True)
    recall_T, precision_T = true_T / ranking.positives_P.size, true_T / (true_T + false_T)
    return recall_T[kept_T].tolist(), precision_T[kept_T].tolist(), thresholds_T[kept_T].tolist()


def gain_points(ranking: Ranking) -> tuple[list[float], list[float], list[float]]:
    """Return (share of rows alerted on, share of positives found, threshold) from (0, 0) to (1, 1).

    The ratio of the first two is the lift: how many times more positives the alerts have than as many random rows.
    At most ``GAIN_POINTS``, evenly spread over the rows, each exact. Three empty lists where there is no positive.
    """
    if ranking.positives_P.size == 0:
        return [], [], []
    counts = {round(rank) for rank in np.linspace(1, ranking.rows, min(GAIN_POINTS - 1, ranking.rows))}
    thresholds_T = np.unique(ranking.alert_thresholds(counts))[::-1]
    true_T, false_T = ranking.counts(thresholds_T)
    return (
        [0.0, *((true_T + false_T) / ranking.rows).tolist()],
        [0.0, *(true_T / ranking.positives_P.size).tolist()],
        [1.0, *thresholds_T.tolist()],
    )


def threshold_counts(ranking: Ranking, operating: float | None) -> dict[str, Any]:
    """Count true and false alerts at many thresholds, the operating one among them, to choose one by what errors cost.

    Returns:
        ``thresholds``, falling: None, which no row reaches, and scores down to the lowest; ``true`` and ``false``
        alerts at each, ``positives`` and ``negatives`` of all rows, and ``operating``, the index of that threshold.
    """
    positives, negatives = ranking.positives_P, ranking.negatives_M
    # Half of them by the scores of each class, as for the ROC curve; the lowest score alerts on every row.
    picked = [_spread(each, EXPLORED // 2) for each in (positives, negatives) if each.size]
    chosen = np.concatenate([*picked, [] if operating is None else [operating]])
    thresholds_T = np.unique(chosen.astype(np.float64))[::-1]
    true_T, false_T = ranking.counts(thresholds_T.astype(positives.dtype))
    return {
        # Nine digits are enough to distinguish any two float32.
        "thresholds": [None, *(float(f"{threshold:.9g}") for threshold in thresholds_T)],
        "true": [0, *true_T.tolist()],
        "false": [0, *false_T.tolist()],
        "positives": positives.size,
        "negatives": negatives.size,
        "operating": None if operating is None else 1 + int(np.argmin(np.abs(thresholds_T - operating))),
    }


def calibration_points(ranking: Ranking, bins: int = 15) -> tuple[list[float], list[float], list[int]]:
    """Return (mean probability, observed rate, rows) of bins of equal count, probability rising.

    Equal scores stay in one bin, so that there are fewer bins where scores repeat. Of at most 15 bins, each of a
    thousand rows' bins still has 66.
    """
    if ranking.rows == 0:
        return [], [], []
    # Stable sorting merges the two sorted classes.
    scores_N = np.sort(np.concatenate([ranking.positives_P, ranking.negatives_M]), kind="stable")
    # Bins begin at values, so that equal scores are always in one bin.
    edges_T = np.unique(scores_N[np.arange(bins) * ranking.rows // bins])
    starts_T = np.searchsorted(scores_N, edges_T)
    rows_T = np.diff(starts_T, append=ranking.rows)
    means_T = np.add.reduceat(scores_N, starts_T, dtype=np.float64) / rows_T
    true_T, _ = ranking.counts(edges_T)
    rates_T = -np.diff(true_T, append=0) / rows_T
    return means_T.tolist(), rates_T.tolist(), rows_T.tolist()


def score_histogram(ranking: Ranking) -> tuple[list[float], list[int], list[int]]:
    """Count rows by score, in bins of equal width between 0 and 1.

    Returns:
        The edges of the bins, the negatives and the positives in each bin.
    """
    edges = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
    negatives, positives = (np.histogram(each, edges)[0] for each in (ranking.negatives_M, ranking.positives_P))
    return edges.tolist(), negatives.tolist(), positives.tolist()


def confusion_matrix(labels_N: Array, scores_N: Array, threshold: float) -> list[list[int]]:
    """Count rows as [[true negatives, false positives], [false negatives, true positives]]; of 255, not measured, none.

    >>> confusion_matrix(np.array([0, 0, 1, 255], np.uint8), np.array([0.1, 0.6, 0.7, 0.9]), 0.5)
    [[1, 1], [0, 1]]
    """
    labels, alerts = np.asarray(labels_N), np.asarray(scores_N) >= threshold
    return [
        [int(np.count_nonzero(~alerts & (labels == value))), int(np.count_nonzero(alerts & (labels == value)))]
        for value in (0, 1)
    ]


def threshold_table(ranking: Ranking, operating: float | None) -> list[dict[str, Any]]:
    """Return the results of alerting on the top 0.1% to 50% of the rows, or at the ``operating`` threshold.

    Returns:
        One dict a threshold, falling: ``threshold``, ``precision``, ``recall``, ``f1``, ``lift``,
        ``alerts_per_1000`` and ``operating`` (whether it is the one given). Precision is None without an alert, recall
        and F1 without a positive, lift without either. Rates that equal scores make the same are one row.
    """
    if ranking.rows == 0:
        return []
    ladder = ranking.alert_thresholds(max(1, round(rate * ranking.rows)) for rate in ALERT_RATES)
    thresholds = {float(threshold) for threshold in ladder} | ({operating} if operating is not None else set())
    thresholds_T = np.array(sorted(thresholds, reverse=True), dtype=ladder.dtype)
    rows = []
    for threshold, true, false in zip(sorted(thresholds, reverse=True), *ranking.counts(thresholds_T), strict=True):
        alerts, positives = int(true + false), ranking.positives_P.size
        rows.append(
            {
                "threshold": threshold,
                "precision": int(true) / alerts if alerts else None,
                "recall": int(true) / positives if positives else None,
                "f1": 2 * int(true) / (alerts + positives) if positives else None,
                "lift": int(true) / alerts * ranking.rows / positives if alerts and positives else None,
                "alerts_per_1000": 1000 * alerts / ranking.rows,
                "operating": threshold == operating,
            }
        )
    return rows
