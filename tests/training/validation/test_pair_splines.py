"""Surfaces of pairs: lines between knots, and sums by the knots that match those by the cells."""

import numpy as np
import pytest

from dkan_core.training.validation.pair_splines import KNOTS, PairSpline, hat_functions

# Two fine sides, a fine and a coarse one, a category after and one before the number.
ARRANGEMENTS = [
    ((49, 49), (True, True)),
    ((49, 8), (True, True)),
    ((49, 5), (True, False)),
    ((3, 49), (False, True)),
]


def dense(spline: PairSpline) -> np.ndarray:
    """Return what each knot counts in each cell, ``(C, K * S)``."""
    blocks, numbers = spline.at_knots(np.zeros(np.prod(spline.shape))).shape
    units = np.eye(blocks * numbers).reshape(-1, blocks, numbers)
    return np.stack([spline.to_cells(unit) for unit in units], axis=1)


@pytest.mark.parametrize(("shape", "ordered"), ARRANGEMENTS)
def test_sums_by_knots_are_those_of_the_cells(shape: tuple[int, int], ordered: tuple[bool, bool]) -> None:
    spline, rng = PairSpline(shape, ordered), np.random.default_rng(0)
    cells = int(np.prod(shape))
    basis = dense(spline)
    gradient_C, curvature_C = rng.normal(size=cells), rng.random(cells)
    np.testing.assert_allclose(spline.project(gradient_C).ravel(), basis.T @ gradient_C, atol=1e-12)
    whole = basis.T @ (curvature_C[:, None] * basis)
    size = spline.project(gradient_C).shape[1]
    blocks = spline.curvature(curvature_C)
    for number, block in enumerate(blocks):
        at = slice(number * size, (number + 1) * size)
        np.testing.assert_allclose(block, whole[at, at], atol=1e-12)
        whole[at, at] = 0
    assert not whole.any(), "blocks have nothing in common"


@pytest.mark.parametrize(("shape", "ordered"), ARRANGEMENTS)
def test_knots_are_found_again_in_the_cells(shape: tuple[int, int], ordered: tuple[bool, bool]) -> None:
    spline = PairSpline(shape, ordered)
    numbers_KS = np.random.default_rng(0).normal(size=spline.at_knots(np.zeros(np.prod(shape))).shape)
    np.testing.assert_allclose(spline.at_knots(spline.to_cells(numbers_KS)), numbers_KS, atol=1e-12)


def test_lines_between_knots_are_straight_and_missing_values_apart() -> None:
    hats = hat_functions(49)
    assert hats.shape == (49, KNOTS + 1)
    np.testing.assert_allclose(hats.sum(axis=1), 1)
    at = hats.argmax(axis=0)
    np.testing.assert_allclose(hats @ at, np.arange(49), atol=1e-12)
    assert hats[0].tolist() == [1.0, *[0.0] * KNOTS] and not hats[1:, 0].any()


def test_a_side_of_few_bins_has_a_knot_in_each() -> None:
    np.testing.assert_array_equal(hat_functions(17), np.eye(17))
