"""What codes say about log-odds: the derivatives of the formula, by the native extension and without it."""

import numpy as np
import pytest

from dkan_core.model.calibration import sigmoid
from dkan_core.training import likelihood
from dkan_core.training.likelihood import LogisticLikelihood
from dkan_core.utils.arrays import UInt16
from tests.native import needs_native, variant  # noqa: F401 - a fixture

SIZES = [(0, 3), (1, 1), (700, 2), (5_000, 256), (5_000, 257), (3_000, 40_000)]


def rows_of(count: int, size: int) -> tuple[LogisticLikelihood, UInt16]:
    """Return rows with log-odds from far below 0 to far above, and codes of which most are small."""
    rng = np.random.default_rng(count + size)
    rows = LogisticLikelihood(rng.integers(0, 2, count), rng.exponential(size=count), log_odds=0.5)
    rows.log_odds_N += rng.normal(scale=20, size=count)
    return rows, (size * rng.random(count) ** 3).astype(np.uint16)


def check(count: int, size: int) -> None:
    """Compare sums and log-odds with the formulas, of which those of log-odds are exact."""
    rows, codes_N = rows_of(count, size)
    table_C = np.random.default_rng(0).normal(size=size)
    expected_N = rows.log_odds_N + table_C[codes_N]
    rows.add(codes_N, table_C)
    np.testing.assert_array_equal(rows.log_odds_N, expected_N)
    weight_N, target_N = rows.weight_N.astype(np.float64), rows.target_N.astype(np.float64)
    probability_N = sigmoid(rows.log_odds_N)
    gradient_C, curvature_C = rows.sums(codes_N, size)
    for found_C, value_N in (
        (gradient_C, weight_N * (target_N - probability_N)),
        (curvature_C, weight_N * probability_N * (1 - probability_N)),
    ):
        assert found_C.shape == (size,)
        error = np.abs(found_C - np.bincount(codes_N, value_N, size)).max()
        assert error <= 1e-6 * np.abs(value_N).sum()
    assert rows.total() == pytest.approx((gradient_C.sum(), curvature_C.sum()), rel=1e-6, abs=1e-6)


@needs_native
@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("count", "size"), SIZES)
def test_the_extension_equals_the_formulas(count: int, size: int) -> None:
    check(count, size)


@pytest.mark.parametrize(("count", "size"), SIZES)
def test_so_does_what_takes_its_place(count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "native_library", lambda: None)
    check(count, size)


def test_codes_beyond_the_last_are_refused() -> None:
    rows, codes_N = rows_of(100, 5)
    codes_N[40] = 5
    before_N = rows.log_odds_N.copy()
    with pytest.raises(IndexError):
        rows.add(codes_N, np.ones(5))
    np.testing.assert_array_equal(rows.log_odds_N, before_N)
