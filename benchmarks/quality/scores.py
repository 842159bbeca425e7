"""How good the probabilities of a fit are, and how certain that is.

Shape suffixes: N rows, L labels, B resamples, T distinct scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation.curves import calibration_points
from dkan_core.evaluation.metrics import compute_metrics, rank_scores

Array = npt.NDArray[Any]

RESAMPLES, MIN_RESAMPLES, CELLS_TO_RESAMPLE = 1000, 100, 2_000_000_000
CALIBRATION_BINS = 15


def score(labels_NL: Array, probabilities_NL: Array, names: Sequence[str]) -> dict[str, Any]:
    """Return the means over labels of AP, ROC AUC, log loss and calibration error, and the prevalence.

    The prevalence is that of the labels that have an AP: those with both classes measured.
    """
    metrics = compute_metrics(labels_NL, probabilities_NL, names)
    ranked = [label["prevalence"] for label in metrics["labels"].values() if label["average_precision"] is not None]
    errors = [calibration_error(labels_NL[:, index], probabilities_NL[:, index]) for index in range(len(names))]
    return {
        **{key: metrics[key] for key in ("average_precision", "roc_auc", "log_loss")},
        "calibration_error": float(np.mean(errors)),
        "prevalence": float(np.mean(ranked)) if ranked else None,
        "labels": {name: label["average_precision"] for name, label in metrics["labels"].items()},
    }


def calibration_error(labels_N: Array, probabilities_N: Array, bins: int = CALIBRATION_BINS) -> float:
    """Return the expected calibration error over bins of equal mass.

    The measured rows are sorted by probability and cut into ``bins`` bins of as many rows each (equal probabilities
    stay together). The error is the mean over rows of the gap between their bin's mean probability and its share of
    positives (Nguyen & O'Connor 2015; Nixon et al. 2019).

    >>> round(calibration_error(np.array([0, 0, 0, 1], np.uint8), np.array([0.1, 0.1, 0.7, 0.7]), bins=2), 6)
    0.15
    """
    means, rates, rows = (np.array(part) for part in calibration_points(rank_scores(labels_N, probabilities_N), bins))
    return float(np.sum(rows * np.abs(means - rates)) / rows.sum()) if rows.size else 0.0


def bootstrap(labels_NL: Array, runs: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
    """Return the AP on resampled test rows of each model: the mean over its runs and over the labels.

    Every model sees the same resamples, so that the difference of two models can be taken resample by resample.
    There are 1,000 of them, fewer on very large test sets, 100 at least.

    Shape:
        - labels_NL: ``(N, L)``; each of the runs: ``(N, L)``
        - Output: ``(B,)`` a model
    """
    rows, labels = labels_NL.shape
    fits = max(1, sum(len(probabilities) for probabilities in runs.values()))
    resamples = int(np.clip(CELLS_TO_RESAMPLE // (rows * labels * fits), MIN_RESAMPLES, RESAMPLES))
    rankings = {
        model: [[_WeightedAP(labels_NL[:, label], run[:, label]) for label in range(labels)] for run in probabilities]
        for model, probabilities in runs.items()
    }
    found: dict[str, list[float]] = {model: [] for model in runs}
    for weights_N in _resamples(rows, resamples):
        for model, ranked in rankings.items():
            found[model].append(float(np.mean([_mean_defined([one(weights_N) for one in run]) for run in ranked])))
    return {model: np.array(values) for model, values in found.items()}


def _resamples(rows: int, count: int) -> Iterator[Array]:
    """Yield how often each row is drawn."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield np.bincount(rng.integers(rows, size=rows), minlength=rows).astype(np.float64)


def _mean_defined(values: Sequence[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return sum(defined) / len(defined) if defined else float("nan")


class _WeightedAP:
    """Average precision of one label with a weight on each row, sorted once for all the weights."""

    def __init__(self, labels_N: Array, scores_N: Array) -> None:
        measured = np.flatnonzero(labels_N != NOT_MEASURED)
        falling = np.argsort(-scores_N[measured], kind="stable")
        self.order = measured[falling]
        self.positive = labels_N[self.order].astype(np.float64)
        scores_sorted = scores_N[self.order]
        self.ends_T = np.flatnonzero(np.append(scores_sorted[1:] != scores_sorted[:-1], True))

    def __call__(self, weights_N: Array) -> float:
        """Return the average precision, or nan where one class has no weight."""
        weights = weights_N[self.order]
        true_T = np.cumsum(weights * self.positive)[self.ends_T]
        alerts_T = np.cumsum(weights)[self.ends_T]
        if true_T.size == 0 or not 0 < true_T[-1] < alerts_T[-1]:
            return float("nan")
        precision_T = true_T / np.maximum(alerts_T, 1.0)  # weights are whole: below 1 is no alert at all
        return float(np.sum(np.diff(true_T, prepend=0.0) * precision_T) / true_T[-1])


def interval(values_B: Array) -> tuple[float, float]:
    """Return the central 95% of resampled values."""
    low, high = np.nanquantile(values_B, [0.025, 0.975])
    return float(low), float(high)
