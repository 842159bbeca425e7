"""What ids add, by penalized likelihood: known effects are found, and noise is held back."""

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import LogisticRegression

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.model.calibration import sigmoid
from dkan_core.training.additive_fit.id_effects import PENALTIES, IdEffects, fitted_ids
from dkan_core.training.additive_fit.penalized_fit import PenalizedFit
from dkan_core.utils.arrays import Arrays

IDS, TRAIN, ROWS = 60, 6_000, 9_000
Ones = npt.NDArray[np.bool_]
# The first label depends on the ids, the second one on nothing.
EFFECT_V = np.random.default_rng(5).normal(size=IDS)


def codes_of(ones_NV: Ones) -> npt.NDArray[np.int32]:
    codes_NV = np.where(ones_NV, np.arange(1, ones_NV.shape[1] + 1), 0).astype(np.int32)
    return np.sort(codes_NV, axis=1)[:, ::-1][:, : ones_NV.sum(axis=1).max()]


@pytest.fixture(scope="module")
def ones_NV() -> Ones:
    return np.random.default_rng(0).random((ROWS, IDS)) < np.linspace(0.2, 0.02, IDS)


@pytest.fixture(scope="module")
def arrays(ones_NV: Ones) -> Arrays:
    rng = np.random.default_rng(1)
    odds_N = ones_NV @ EFFECT_V - 1
    labels_NL = rng.random((ROWS, 2)) < np.stack([sigmoid(odds_N), np.full(ROWS, 0.3)], axis=1)
    return {"sparse": codes_of(ones_NV), "labels": labels_NL.astype(np.uint8)}


def fit(arrays: Arrays, penalties: list[float] | None = None) -> list[IdEffects]:
    train = {name: array[:TRAIN] for name, array in arrays.items()}
    valid = {name: array[TRAIN:] for name, array in arrays.items()}
    return fitted_ids(ArraysReader(train), ArraysReader(valid), IDS + 1, penalties)


def test_known_effects_are_found_and_noise_is_held_back(arrays: Arrays) -> None:
    known, noise = fit(arrays)
    assert np.abs(known.table_V[1:] - EFFECT_V).mean() < 0.25 and known.table_V[0] == 0
    assert known.penalty < 30 < noise.penalty
    assert np.abs(noise.log_odds()).std() < 0.05


def test_fit_is_that_of_ridge_logistic_regression(arrays: Arrays, ones_NV: Ones) -> None:
    target_N = arrays["labels"][:TRAIN, 0]
    fitted = PenalizedFit([], target_N, np.ones(TRAIN), fit(arrays, [5.0, 5.0])[0])
    fitted.fit()
    expected = LogisticRegression(C=1 / 5, tol=1e-8, max_iter=1000).fit(ones_NV[:TRAIN], target_N)
    assert fitted.ids is not None
    np.testing.assert_allclose(fitted.ids.table_V[1:], expected.coef_[0], atol=1e-4)
    assert fitted.intercept == pytest.approx(expected.intercept_[0], abs=1e-4)


def test_rows_that_count_for_nothing_and_labels_that_are_not_measured_teach_nothing(arrays: Arrays) -> None:
    weight_N = np.random.default_rng(2).integers(0, 3, ROWS).astype(np.float32)
    labels_NL = arrays["labels"].copy()
    labels_NL[::5] = NOT_MEASURED
    weighted = {**arrays, "labels": labels_NL, "weight": weight_N}
    changed_NL = np.where((weight_N == 0)[:, None] & (labels_NL != NOT_MEASURED), 1 - labels_NL, labels_NL)
    kept = (weight_N > 0) & (labels_NL[:, 0] != NOT_MEASURED)
    rows = np.concatenate([np.flatnonzero(kept[:TRAIN]), np.arange(TRAIN, ROWS)])
    found, of_changed = (
        fit({**weighted, "labels": each, "weight": weight})[0]
        for each, weight in ((labels_NL, weight_N), (changed_NL, 8 * weight_N))
    )
    np.testing.assert_allclose(of_changed.table_V, found.table_V, atol=1e-6)
    train = {name: array[rows] for name, array in weighted.items()}
    split = (rows < TRAIN).sum()
    parts = [{name: array[part] for name, array in train.items()} for part in (slice(split), slice(split, None))]
    of_kept = fitted_ids(ArraysReader(parts[0]), ArraysReader(parts[1]), IDS + 1)[0]
    assert of_kept.penalty == found.penalty
    np.testing.assert_allclose(of_kept.table_V, found.table_V, atol=1e-6)


def test_penalty_of_an_earlier_fit_gives_the_same_bits(arrays: Arrays) -> None:
    first = fit(arrays)
    again, known = fit(arrays), fit({**arrays, "labels": arrays["labels"]}, [each.penalty for each in first])
    for each, *others in zip(first, again, known, strict=True):
        for other in others:
            assert other.penalty == each.penalty
            assert other.table_V.tobytes() == each.table_V.tobytes()


def test_validation_that_measures_no_label_chooses_nothing(arrays: Arrays) -> None:
    labels_NL = arrays["labels"].copy()
    labels_NL[TRAIN:] = NOT_MEASURED
    for each in fit({**arrays, "labels": labels_NL}):
        assert each.penalty == PENALTIES[0] and not each.table_V.any()
