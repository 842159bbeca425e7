"""Intervals of metrics: they hold the truth as often as they say, and pairs are compared on the same rows."""

import time

import numpy as np
import pytest

from dkan_core.evaluation.intervals import (
    KEYS,
    add_intervals,
    difference_intervals,
    difference_to,
    metric_intervals,
    rate_interval,
)
from dkan_core.evaluation.metrics import compute_metrics
from dkan_core.utils.arrays import Array


def draw(rows: int, seed: int, shift: float = 1.5, prevalence: float = 0.15) -> tuple[Array, Array]:
    """Labels and scores whose ROC AUC is known: that of two normal distributions."""
    random = np.random.default_rng(seed)
    labels_N = (random.random(rows) < prevalence).astype(np.uint8)
    scores_N = 1 / (1 + np.exp(-(random.normal(size=rows) + shift * labels_N - 1)))
    return labels_N, scores_N.astype(np.float32)


def metrics_of(labels_N: Array, scores_N: Array, weight_N: Array | None = None) -> dict[str, float]:
    found = compute_metrics(labels_N[:, None], scores_N[:, None], ["y"], weight_N)
    return {key: found[key] for key in KEYS}


@pytest.mark.parametrize("weighted", [False, True])
def test_nineteen_of_twenty_intervals_hold_the_value_of_endless_rows(weighted: bool) -> None:
    def weigh(rows: int) -> Array | None:
        # Unlike weights: the intervals are those of fewer rows.
        return np.tile([0.2, 1.0, 3.0, 0.0], rows // 4) if weighted else None

    truth = metrics_of(*draw(200_000, 999))
    hits = dict.fromkeys(KEYS, 0)
    for seed in range(20):
        labels_N, scores_N = draw(600, seed)
        weight_N = weigh(600)
        values = metrics_of(labels_N, scores_N, weight_N)
        for key, offsets in zip(KEYS, metric_intervals(labels_N, scores_N, weight_N), strict=True):
            assert offsets is not None
            hits[key] += values[key] + offsets[0] <= truth[key] <= values[key] + offsets[1]
    # Of 20 at 95% all but one; fewer than 16 would come by chance three times in 1,000.
    assert all(count >= 16 for count in hits.values()), hits


@pytest.mark.parametrize("shift", [3.0, 3.5])
def test_intervals_near_1_hold_the_value_as_often(shift: float) -> None:
    truth = metrics_of(*draw(200_000, 999, shift))
    hits = dict.fromkeys(KEYS, 0)
    for seed in range(60):
        labels_N, scores_N = draw(150, seed, shift)
        values = metrics_of(labels_N, scores_N)
        for key, offsets in zip(KEYS, metric_intervals(labels_N, scores_N), strict=True):
            hits[key] += offsets is None or values[key] + offsets[0] <= truth[key] <= values[key] + offsets[1]
    # Of 60 at 95% all but three; percentiles of the bootstrap hold 42 to 51.
    assert all(count >= 54 for count in hits.values()), hits


def test_a_perfect_ranking_has_no_interval() -> None:
    labels_N = np.repeat(np.array([0, 1], np.uint8), 50)
    assert metric_intervals(labels_N, np.linspace(0, 1, 100)) == [None, None]


def test_intervals_are_as_wide_as_those_of_rows_drawn_anew() -> None:
    labels_N, scores_N = draw(3000, 1)
    random = np.random.default_rng(2)
    drawn = [metrics_of(labels_N[rows], scores_N[rows]) for rows in random.integers(0, 3000, (200, 3000))]
    for key, offsets in zip(KEYS, metric_intervals(labels_N, scores_N), strict=True):
        assert offsets is not None
        wanted = np.quantile([values[key] for values in drawn], [0.025, 0.975])
        assert offsets[1] - offsets[0] == pytest.approx(wanted[1] - wanted[0], rel=0.2)


def test_a_difference_is_much_more_certain_than_both_values() -> None:
    labels_N, scores_N = draw(3000, 1)
    nearly_N = scores_N + np.random.default_rng(3).normal(0, 0.01, 3000)
    alone = metric_intervals(labels_N, scores_N)
    paired = difference_intervals(labels_N, scores_N, nearly_N)
    same = difference_intervals(labels_N, scores_N, scores_N)
    for one, two, none in zip(alone, paired, same, strict=True):
        assert one is not None and two is not None
        assert two[1] - two[0] < (one[1] - one[0]) / 3
        assert none == [0.0, 0.0]


def test_many_rows_cost_no_more_than_sorting_them() -> None:
    labels_N, scores_N = draw(1_000_000, 4, prevalence=0.01)
    started = time.process_time()
    compute_metrics(labels_N[:, None], scores_N[:, None], ["y"])
    sorting = time.process_time() - started
    started = time.process_time()
    (precision, _) = metric_intervals(labels_N, scores_N)
    assert time.process_time() - started < 20 * sorting + 2
    assert precision is not None and precision[0] < 0 < precision[1] < 0.02


def test_labels_of_one_class_have_none_and_several_have_their_own() -> None:
    labels_N, scores_N = draw(500, 5)
    labels_NL = np.stack([labels_N, np.zeros(500, np.uint8), np.where(scores_N > 0.5, 255, labels_N)], axis=1)
    probabilities_NL = np.stack([scores_N] * 3, axis=1)
    metrics = compute_metrics(labels_NL, probabilities_NL, ["a", "none", "part"])
    add_intervals(metrics, labels_NL, probabilities_NL)
    assert metrics["labels"]["none"]["average_precision_interval"] is None
    assert "average_precision_interval" not in metrics, "a mean of labels has none"
    for name in ("a", "part"):
        low, high = metrics["labels"][name]["roc_auc_interval"]
        assert 0 <= low < metrics["labels"][name]["roc_auc"] < high <= 1
    assert difference_to(metrics, metrics, labels_NL, probabilities_NL, probabilities_NL) == {}


def test_replicates_without_a_positive_do_not_narrow_an_interval() -> None:
    """With a single positive, more than a third of the replicates have none, and no metrics."""
    labels_N, scores_N = np.zeros(400, np.uint8), np.linspace(0, 1, 400)
    labels_N[300] = 1
    low, high = metric_intervals(labels_N, scores_N)[1] or [0.0, 0.0]
    # Beside a positive, only the negatives below it vary: a share of 3/4 of 400 rows.
    assert high - low > 2 * 1.96 * np.sqrt(0.75 * 0.25 / 400)


def test_rate_interval_never_leaves_zero_to_one() -> None:
    for positives in (0, 1, 10, 20):
        low, high = rate_interval(positives, 20)
        assert 0 <= low <= positives / 20 <= high <= 1
        assert high - low > 0.05
