"""The bands of a grid of knots give what the dense matrix does."""

import numpy as np
import pytest

from dkan_core.training.additive_fit.pair_matrices import BandedGrid, DenseBlocks, pair_matrix
from dkan_core.training.additive_fit.pair_splines import PairSpline

BINS = tuple(range(1, 256, 5))[:48]


def grid(*max_knots: int) -> PairSpline:
    return PairSpline((49, 49), (BINS, BINS), max_knots)


# Even and odd numbers of rows, and rows longer and shorter than there are of them.
@pytest.mark.parametrize("knots", [(12, 12), (11, 12), (12, 20), (19, 11), (1, 3), (3, 48)])
def test_a_grid_is_solved_as_a_dense_matrix_is(knots: tuple[int, int]) -> None:
    spline, rng = grid(*knots), np.random.default_rng(0)
    # Half of the cells have no rows.
    curvature_C = rng.random(49 * 49) * rng.integers(0, 2, 49 * 49)
    right_KS = rng.normal(size=(1, np.prod(spline.knots)))
    dense, banded = DenseBlocks(spline), BandedGrid(spline)
    for weight in (0.1, 30.0):
        for each in (dense, banded):
            each.factorize(curvature_C, weight)
        np.testing.assert_allclose(banded.solve(right_KS), dense.solve(right_KS), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(banded.roughness_trace(), dense.roughness_trace(), rtol=1e-9)
    np.testing.assert_allclose(banded.times_roughness(right_KS), dense.times_roughness(right_KS), atol=1e-12)


def test_a_matrix_is_banded_where_that_takes_less_time() -> None:
    assert isinstance(pair_matrix(grid(12, 12)), DenseBlocks)
    assert isinstance(pair_matrix(grid(24, 24)), BandedGrid)
    assert isinstance(pair_matrix(PairSpline((49, 5), (BINS, None), (48, 48))), DenseBlocks), "a block for each bin"
    assert isinstance(pair_matrix(PairSpline((49, 49), (None, None))), DenseBlocks)
