"""Surfaces of pairs: lines between knots, and sums by the knots that match those by the cells."""

import numpy as np
import pytest

from dkan_core.training.additive_fit.pair_splines import KNOTS, Cuts, PairSpline, hat_functions

# Two fine sides, a fine and a coarse one, a category after and one before the number, and two categories.
FINE, COARSE = tuple(range(1, 256, 5))[:48], tuple(range(1, 256, 40))
ARRANGEMENTS = [
    ((49, 49), (FINE, FINE)),
    ((49, 8), (FINE, COARSE)),
    ((49, 5), (FINE, None)),
    ((3, 49), (None, FINE)),
    ((3, 5), (None, None)),
]


def dense(spline: PairSpline) -> np.ndarray:
    """Return what each knot counts in each cell, ``(C, K * S)``."""
    blocks, numbers = spline.at_knots(np.zeros(np.prod(spline.shape))).shape
    units = np.eye(blocks * numbers).reshape(-1, blocks, numbers)
    return np.stack([spline.to_cells(unit) for unit in units], axis=1)


@pytest.mark.parametrize(("shape", "cuts"), ARRANGEMENTS)
def test_sums_by_knots_are_those_of_the_cells(shape: tuple[int, int], cuts: tuple[Cuts | None, ...]) -> None:
    spline, rng = PairSpline(shape, cuts), np.random.default_rng(0)
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


@pytest.mark.parametrize(("shape", "cuts"), ARRANGEMENTS)
def test_knots_are_found_again_in_the_cells(shape: tuple[int, int], cuts: tuple[Cuts | None, ...]) -> None:
    spline = PairSpline(shape, cuts)
    numbers_KS = np.random.default_rng(0).normal(size=spline.at_knots(np.zeros(np.prod(shape))).shape)
    np.testing.assert_allclose(spline.at_knots(spline.to_cells(numbers_KS)), numbers_KS, atol=1e-12)


def test_lines_between_knots_are_straight_over_scores_and_missing_values_apart() -> None:
    # As the scores of a normal column: narrow bins in the middle.
    cuts = tuple(int(code) for code in 128 + 40 * np.arctanh(np.linspace(-0.995, 0.995, 48)))
    hats = hat_functions(cuts)
    assert hats.shape == (49, KNOTS + 1)
    np.testing.assert_allclose(hats.sum(axis=1), 1)
    center = np.array([*cuts, 256])
    center = (center[:-1] + center[1:]) / 2
    at = hats[1:, 1:].argmax(axis=0)
    np.testing.assert_allclose(hats[1:, 1:] @ center[at], center, atol=1e-9)
    assert hats[0].tolist() == [1.0, *[0.0] * KNOTS] and not hats[1:, 0].any()
    gaps = np.diff(at)
    assert gaps[0] < gaps[len(gaps) // 2], "knots are closer in rank where scores are far apart"


def test_more_knots_are_where_a_surface_is_rough() -> None:
    spline = PairSpline((49, 49), (FINE, FINE))
    first, second = np.arange(49.0)[:, None], np.arange(49.0)[None, :]
    waves = {
        (25, 13): np.sin(first) + second,
        (13, 25): first + np.sin(second),
        (25, 25): np.sin(first) + np.sin(second),
    }
    for knots, table in waves.items():
        finer = spline.with_more_knots(table.ravel())
        assert finer is not None and finer.knots == knots
    coarse = PairSpline((8, 8), (COARSE, COARSE))
    assert coarse.with_more_knots(np.random.default_rng(0).normal(size=64)) is None


def test_a_side_of_few_bins_has_a_knot_in_each() -> None:
    np.testing.assert_array_equal(hat_functions(tuple(range(1, 256, 16))), np.eye(17))
