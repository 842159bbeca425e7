"""Calibration undoes a known distortion and leaves the order of the rows alone."""

import numpy as np
import pytest

from dkan_core.evaluation.metrics import average_precision, compute_metrics
from dkan_core.model.calibration import MAX_SCALE, MIN_SCALE, fit_calibration


def draw(rows: int, shift: float = -2.0, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(rows, 1)) * spread + shift
    return (rng.random((rows, 1)) < 1 / (1 + np.exp(-truth))).astype(np.uint8), truth


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 1.0), (0.4, -2.0), (1.0, 0.0)])
def test_a_distortion_is_found_and_undone(scale: float, shift: float) -> None:
    labels, truth = draw(50_000)
    found_scale, found_shift = fit_calibration(labels, truth * scale + shift)
    assert found_scale[0] == pytest.approx(1 / scale, rel=0.03)
    assert found_shift[0] == pytest.approx(-shift / scale, rel=0.03, abs=0.05)


def test_order_stays_and_log_loss_falls() -> None:
    labels, truth = draw(20_000)
    raw = (truth * 5 + 3).astype(np.float32)
    scale, shift = fit_calibration(labels, raw)
    mapped = raw * scale + shift
    assert average_precision(labels, mapped) == pytest.approx(average_precision(labels, raw), abs=1e-9)
    before, after = (compute_metrics(labels, 1 / (1 + np.exp(-values)), ["a"]) for values in (raw, mapped))
    assert after["log_loss"] < before["log_loss"]


@pytest.mark.parametrize("positives", [1, 2, 5, 997])
def test_mean_probability_is_that_of_the_labels_also_of_few(positives: int) -> None:
    _, truth = draw(1000)
    labels = np.zeros((1000, 1), np.uint8)
    labels[np.argsort(truth[:, 0])[-positives:]] = 1
    scale, shift = fit_calibration(labels, truth)
    mean = np.mean(1 / (1 + np.exp(-(scale * truth + shift))))
    assert mean == pytest.approx(positives / 1000, rel=1e-3)


def test_labels_are_apart_and_not_measured_cells_left_out() -> None:
    labels, truth = draw(20_000)
    both = np.hstack([truth, -truth])
    truths = np.hstack([labels, 1 - labels])
    gap = np.random.default_rng(1).random(truths.shape) < 0.3
    truths[gap], both[gap] = 255, 1e6
    scale, shift = fit_calibration(truths, both)
    np.testing.assert_allclose(scale, 1, rtol=0.05)
    np.testing.assert_allclose(shift, 0, atol=0.1)


def test_weights_count_as_copies_of_rows() -> None:
    labels, truth = draw(5000)
    times = np.where(labels[:, 0] == 1, 3, 1)
    weighted = fit_calibration(labels, truth, times)
    copied = fit_calibration(np.repeat(labels, times, axis=0), np.repeat(truth, times, axis=0))
    np.testing.assert_allclose(weighted, copied, rtol=2e-3)


@pytest.mark.parametrize("labels", [[0, 0, 255], [1, 1, 1], [255, 255, 255]])
def test_one_class_alone_changes_nothing(labels: list[int]) -> None:
    scale, shift = fit_calibration(np.array([labels], np.uint8).T, np.array([[0.5], [1.0], [2.0]]))
    assert scale.tolist() == [1] and shift.tolist() == [0]


@pytest.mark.parametrize("log_odds", [np.zeros((100, 1)), np.linspace(-1, 1, 100)[:, None], np.full((100, 1), 1e4)])
def test_scores_without_noise_or_spread_give_finite_maps(log_odds: np.ndarray) -> None:
    labels = (np.arange(100) >= 50).astype(np.uint8)[:, None]
    scale, shift = fit_calibration(labels, log_odds)
    assert MIN_SCALE <= scale[0] <= MAX_SCALE and np.isfinite(shift[0])


@pytest.mark.parametrize(("center", "spread"), [(-60.0, 1.0), (0.0, 60.0), (90.0, 20.0)])
def test_log_odds_of_any_size_are_calibrated(center: float, spread: float) -> None:
    rng = np.random.default_rng(0)
    log_odds = center + spread * rng.normal(size=(2000, 1))
    labels = (rng.random((2000, 1)) < 1 / (1 + np.exp((center - log_odds) / spread))).astype(np.uint8)
    scale, shift = fit_calibration(labels, log_odds)
    assert np.mean(1 / (1 + np.exp(-(scale * log_odds + shift)))) == pytest.approx(labels.mean(), abs=1e-3)


def test_few_rows_leave_a_model_that_is_right_much_as_it_is() -> None:
    """Also those of 30 rows that happen to be in order, which would have any scale."""
    labels, truth = draw(20_000, shift=0.0, spread=6.0)

    def log_loss(log_odds: np.ndarray) -> float:
        return float(np.logaddexp(0, np.where(labels == 1, -log_odds, log_odds)).mean())

    fitted = [fit_calibration(labels[rows], truth[rows]) for rows in np.split(np.arange(6000), 200)]
    losses = [log_loss(truth * scale + shift) for scale, shift in fitted]
    assert np.mean(losses) < 1.2 * log_loss(truth)
