"""Metrics agree with scikit-learn to the last digits and never return what JSON cannot hold."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as reference

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation import curves, metrics
from dkan_core.evaluation.metrics import rank_scores
from dkan_core.utils.arrays import Array

TIED = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
CONSTANT = st.just(0.5)
FREE = st.floats(0, 1, width=32)


@st.composite
def labelled_scores(draw: st.DrawFn) -> tuple[Array, Array]:
    """Draw labels of both classes with free, heavily tied or constant scores."""
    size = draw(st.integers(2, 60))
    labels = draw(hnp.arrays(np.uint8, size, elements=st.integers(0, 1)))
    labels[:2] = 0, 1
    scores = draw(
        hnp.arrays(
            draw(st.sampled_from([np.float32, np.float64])),
            size,
            elements=draw(st.sampled_from([TIED, CONSTANT, FREE])),
        )
    )
    return labels, scores


def imbalanced(rows: int = 20_000, prevalence: float = 0.02, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < prevalence).astype(np.uint8)
    logits = generator.normal(size=rows) + 2.0 * labels - 4.0
    return labels, (1 / (1 + np.exp(-logits))).astype(np.float32)


@settings(max_examples=120)
@given(labelled_scores())
def test_scalars_equal_scikit_learn(sample: tuple[Array, Array]) -> None:
    labels, scores = sample
    ours = metrics.compute_metrics(labels[:, None], scores[:, None], ["a"])
    clipped = np.clip(scores.astype(np.float64), metrics.LOG_LOSS_CLIP, 1 - metrics.LOG_LOSS_CLIP)
    assert metrics.average_precision(labels, scores) == pytest.approx(
        reference.average_precision_score(labels, scores), abs=1e-12
    )
    assert ours["average_precision"] == metrics.average_precision(labels, scores)
    assert ours["roc_auc"] == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-12)
    assert ours["log_loss"] == pytest.approx(reference.log_loss(labels, clipped), abs=1e-9)
    log_odds_N = np.log(clipped) - np.log1p(-clipped)
    assert metrics.mean_log_loss(labels[:, None], log_odds_N[:, None]) == pytest.approx(ours["log_loss"], abs=1e-8)
    assert ours["brier"] == pytest.approx(reference.brier_score_loss(labels, scores.astype(np.float64)), abs=1e-12)


@settings(max_examples=60)
@given(labelled_scores())
@example((np.array([0, 1], np.uint8), np.full(2, np.finfo(np.float32).smallest_subnormal)))
def test_best_f1_threshold_has_the_best_f1(sample: tuple[Array, Array]) -> None:
    labels, scores = sample
    best = max(reference.f1_score(labels, scores >= threshold) for threshold in np.unique(scores))
    chosen = metrics.best_f1_threshold(labels, scores)
    assert reference.f1_score(labels, scores >= chosen) == pytest.approx(best, abs=1e-12)
    below = np.nextafter(chosen, scores.dtype.type(0))
    # It lies between two scores, or between 0 and the lowest, where there is a number between them.
    assert chosen not in scores or below in scores or below == 0


@settings(max_examples=60)
@given(labelled_scores())
def test_curve_points_are_exact_at_their_thresholds(sample: tuple[Array, Array]) -> None:
    labels, scores = sample
    positives, negatives = labels.sum(), labels.size - labels.sum()
    false_rate, true_rate, thresholds = curves.roc_points(rank_scores(labels, scores))
    assert (false_rate[0], true_rate[0], thresholds[0]) == (0.0, 0.0, 1.0)
    assert (false_rate[-1], true_rate[-1]) == (1.0, 1.0)
    for x, y, threshold in list(zip(false_rate, true_rate, thresholds, strict=True))[1:]:
        (_, false_positives), (_, found) = curves.confusion_matrix(labels, scores, threshold)
        assert (x, y) == (false_positives / negatives, found / positives)
    recall, precision, thresholds = curves.precision_recall_points(rank_scores(labels, scores))
    assert recall == sorted(recall) and recall[-1] == 1.0
    assert precision[-1] == positives / labels.size
    for x, y, threshold in zip(recall, precision, thresholds, strict=True):
        (_, false_positives), (_, found) = curves.confusion_matrix(labels, scores, threshold)
        assert (x, y) == (found / positives, found / (found + false_positives))


@pytest.mark.parametrize("prevalence", [0.002, 0.02, 0.5, 0.98])
def test_thinned_curves_keep_their_area(prevalence: float) -> None:
    labels, scores = imbalanced(prevalence=prevalence)
    false_rate, true_rate, thresholds = curves.roc_points(rank_scores(labels, scores))
    assert len(false_rate) == len(true_rate) == len(thresholds) <= 200
    assert np.isfinite(thresholds).all()
    assert np.trapezoid(true_rate, false_rate) == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-2)
    recall, precision, thresholds = curves.precision_recall_points(rank_scores(labels, scores))
    assert len(recall) == len(precision) == len(thresholds) <= 400
    area = np.sum(np.diff(recall, prepend=0.0) * precision)
    assert area == pytest.approx(metrics.average_precision(labels, scores), abs=1e-2)


def test_cells_not_measured_change_nothing() -> None:
    labels, scores = imbalanced(rows=3_000, prevalence=0.1)
    generator = np.random.default_rng(1)
    masked = np.where(generator.random(labels.size) < 0.3, np.uint8(255), labels)
    kept = masked != 255
    for function in (metrics.average_precision, metrics.best_f1_threshold):
        assert function(masked, scores) == function(labels[kept], scores[kept])
    # All curves are made of these.
    found, expected = rank_scores(masked, scores), rank_scores(labels[kept], scores[kept])
    np.testing.assert_array_equal(found.positives_P, expected.positives_P)
    np.testing.assert_array_equal(found.negatives_M, expected.negatives_M)
    assert curves.confusion_matrix(masked, scores, 0.1) == curves.confusion_matrix(labels[kept], scores[kept], 0.1)
    # not even NaN where nothing was measured
    unscored = np.where(kept, scores, np.nan)
    assert metrics.average_precision(masked, unscored) == metrics.average_precision(masked, scores)


def test_multi_label_is_macro_and_micro() -> None:
    columns = [imbalanced(rows=2_000, prevalence=rate, seed=index) for index, rate in enumerate((0.05, 0.2, 0.5))]
    labels, scores = (np.stack(parts, axis=1) for parts in zip(*columns, strict=True))
    labels[::7, 1] = 255
    names = ["a", "b", "c"]
    result = metrics.compute_metrics(labels, scores, names)
    for index, name in enumerate(names):
        alone = metrics.compute_metrics(labels[:, [index]], scores[:, [index]], [name])
        assert alone["labels"][name] == result["labels"][name]
    for key in metrics.METRIC_NAMES:
        assert result[key] == pytest.approx(np.mean([result["labels"][name][key] for name in names]))
    assert result["average_precision"] == pytest.approx(
        np.mean([metrics.average_precision(labels[:, index], scores[:, index]) for index in range(3)])
    )
    measured = labels != 255
    micro = reference.average_precision_score(labels[measured], scores[measured])
    assert result["average_precision_micro"] == pytest.approx(micro, abs=1e-12)
    assert result["rows"] == 2_000
    assert result["labels"]["b"]["rows"] == int(measured[:, 1].sum())


def test_labels_of_one_class_are_none_and_leave_the_mean() -> None:
    labels = np.array([[0, 1, 255, 0], [0, 1, 255, 1], [0, 1, 255, 0]], np.uint8)
    scores = np.full((3, 4), 0.25)
    result = metrics.compute_metrics(labels, scores, ["none", "all", "unmeasured", "both"])
    for name in ("none", "all", "unmeasured"):
        assert result["labels"][name]["average_precision"] is None
        assert result["labels"][name]["roc_auc"] is None
    assert result["labels"]["unmeasured"]["prevalence"] is None
    assert result["labels"]["none"]["brier"] == 0.0625
    assert result["average_precision"] == pytest.approx(1 / 3)
    assert result["roc_auc"] == 0.5
    alone = metrics.compute_metrics(labels[:, :1], scores[:, :1], ["none"])
    assert alone["average_precision"] is None and alone["average_precision_micro"] is None
    assert alone["rows"] == 3
    assert np.isnan(metrics.average_precision(labels[:, 0], scores[:, 0]))
    assert metrics.best_f1_threshold(labels[:, 0], scores[:, 0]) == 0.5
    assert curves.roc_points(rank_scores(labels[:, 0], scores[:, 0])) == ([], [], [])
    assert curves.precision_recall_points(rank_scores(labels[:, 2], scores[:, 2])) == ([], [], [])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_everything_is_plain_json(dtype: type[np.floating]) -> None:
    labels, scores = imbalanced(rows=500, prevalence=0.1)
    scores = scores.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (
            metrics.compute_metrics(np.stack([labels, labels * 0], 1), np.stack([scores, scores], 1), ["a", "b"]),
            curves.roc_points(rank_scores(labels, scores)),
            curves.precision_recall_points(rank_scores(labels, scores)),
            curves.calibration_points(rank_scores(labels, scores)),
            curves.score_histogram(rank_scores(labels, scores)),
            curves.confusion_matrix(labels, scores, 0.2),
            curves.threshold_table(rank_scores(labels, scores), 0.2),
            curves.threshold_table(rank_scores(labels * 0, scores), 2.0),
            metrics.best_f1_threshold(labels, scores),
        ):
            assert json.dumps(value, allow_nan=False)


def test_calibration_bins_hold_equal_counts_and_every_row() -> None:
    labels, scores = imbalanced()
    probability, rate, rows = curves.calibration_points(rank_scores(labels, scores), bins=10)
    assert len(rows) == 10 and sum(rows) == labels.size
    assert max(rows) - min(rows) <= 20
    assert probability == sorted(probability)
    assert np.dot(rate, rows) == pytest.approx(labels.sum())
    assert np.dot(probability, rows) == pytest.approx(scores.sum(dtype=np.float64))
    probability, rate, rows = curves.calibration_points(rank_scores(labels, np.full(labels.size, 0.5)))
    assert (probability, rows) == ([0.5], [labels.size]) and rate == pytest.approx([labels.mean()])


def test_histogram_counts_every_row_once() -> None:
    labels, scores = imbalanced()
    edges, negatives, positives = curves.score_histogram(rank_scores(labels, scores))
    assert len(edges) == len(negatives) + 1 == len(positives) + 1
    assert sum(negatives) + sum(positives) == labels.size
    assert sum(positives) == labels.sum()


def test_threshold_table_counts_as_the_confusion_matrix_does() -> None:
    labels, scores = imbalanced()
    operating = metrics.best_f1_threshold(labels, scores)
    ranking = rank_scores(labels, scores)
    table = curves.threshold_table(ranking, operating)
    assert [row["operating"] for row in table].count(True) == 1
    assert [row["threshold"] for row in table] == sorted((row["threshold"] for row in table), reverse=True)
    for row in table:
        (_, false_positives), (missed, found) = curves.confusion_matrix(labels, scores, row["threshold"])
        assert ranking.alerts_at(row["threshold"]) == (found, false_positives)
        assert row["precision"] == found / (found + false_positives)
        assert row["recall"] == found / (found + missed)
        assert row["alerts_per_1000"] == 1000 * (found + false_positives) / labels.size
    rates = [row["alerts_per_1000"] for row in table if not row["operating"]]
    assert rates == pytest.approx([1, 5, 10, 20, 50, 100, 200, 500], abs=0.1)


def test_wrong_input_is_named() -> None:
    labels = np.array([0, 1], np.uint8)
    with pytest.raises(ValueError, match="must be finite"):
        metrics.average_precision(labels, np.array([0.5, np.nan]))
    with pytest.raises(ValueError, match=r"one shape, got \(2,\) and \(1,\)"):
        metrics.average_precision(labels, np.array([0.5]))
    with pytest.raises(ValueError, match="2 rows x 2 labels"):
        metrics.compute_metrics(labels[:, None], np.array([[0.5], [0.1]]), ["a", "b"])


@settings(max_examples=100)
@given(labelled_scores(), st.integers(0, 2**32 - 1))
def test_weighted_scalars_equal_scikit_learn(sample: tuple[Array, Array], seed: int) -> None:
    labels, scores = sample
    weight = np.random.default_rng(seed).choice([0.25, 1.0, 3.5], len(labels)).astype(np.float32)
    ours = metrics.compute_metrics(labels[:, None], scores[:, None], ["a"], weight)
    wide = scores.astype(np.float64)
    clipped = np.clip(wide, metrics.LOG_LOSS_CLIP, 1 - metrics.LOG_LOSS_CLIP)
    wanted = {
        "average_precision": reference.average_precision_score(labels, scores, sample_weight=weight),
        "roc_auc": reference.roc_auc_score(labels, scores, sample_weight=weight),
        "log_loss": reference.log_loss(labels, clipped, sample_weight=weight),
        "brier": reference.brier_score_loss(labels, wide, sample_weight=weight),
        "prevalence": np.average(labels, weights=weight),
    }
    assert {name: ours[name] for name in wanted} == pytest.approx(wanted, abs=1e-9)
    log_odds_N = np.log(clipped) - np.log1p(-clipped)
    ours_of_log_odds = metrics.mean_log_loss(labels[:, None], log_odds_N[:, None], weight)
    assert ours_of_log_odds == pytest.approx(wanted["log_loss"], abs=1e-8)
    assert ours["average_precision_micro"] == ours["average_precision"]
    plain = metrics.compute_metrics(labels[:, None], scores[:, None], ["a"])
    for name in wanted:
        assert ours[f"{name}_unweighted"] == ours["labels"]["a"][f"{name}_unweighted"] == plain[name]
    assert metrics.macro_average_precision(labels[:, None], scores[:, None], weight) == ours["average_precision"]


def test_weight_of_a_whole_number_is_so_many_rows_and_of_zero_none() -> None:
    labels, scores = imbalanced(2_000, 0.1)
    labels = np.stack([labels, np.roll(labels, 7)], axis=1)
    labels[::50, 1] = NOT_MEASURED
    scores = np.stack([scores, np.roll(scores, 7)], axis=1)
    count = np.random.default_rng(0).integers(0, 4, len(labels))
    found = metrics.compute_metrics(labels, scores, ["a", "b"], count.astype(np.float32))
    repeated_labels, repeated_scores = np.repeat(labels, count, axis=0), np.repeat(scores, count, axis=0)
    wanted = metrics.compute_metrics(repeated_labels, repeated_scores, ["a", "b"])
    for name in (*metrics.METRIC_NAMES, "average_precision_micro"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-12), name
    for index, name in enumerate(("a", "b")):
        counted = (count > 0) & (labels[:, index] != NOT_MEASURED)
        assert found["labels"][name]["rows"] == np.count_nonzero(counted)
        threshold = metrics.best_f1_threshold(labels[:, index], scores[:, index], count)
        assert threshold == metrics.best_f1_threshold(repeated_labels[:, index], repeated_scores[:, index])
    nothing = metrics.compute_metrics(labels, scores, ["a", "b"], np.zeros(len(labels), np.float32))
    assert nothing["average_precision"] is nothing["log_loss"] is nothing["average_precision_micro"] is None
