"""The matrix of a pair's Newton steps: the curvature of the likelihood by its numbers, and the penalty's roughness.

Shape suffixes: C cells of a pair, K blocks that no neighbourhood joins, S numbers of a block; I and J knots of the
sides of a grid, G groups of two neighbouring rows of knots, each with P numbers.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch

from dkan_core.training.additive_fit.pair_splines import PairSpline
from dkan_core.training.additive_fit.roughness import pair_roughness, side_roughness
from dkan_core.utils.arrays import Float64

# Weights of the squared first and second differences of a pair's neighbouring cells: the smaller the first weight, the
# less planes and products of both sides are penalized, which are what is left of strong pairs.
PAIR_DIFFERENCES = (0.05, 1.0)
# Curvature of cells without rows, on top of what penalties add.
EMPTY_RIDGE = 1e-6
# From so many numbers on, a grid's bands take less time than a dense matrix does.
MIN_BANDED = 400


class PairMatrix(ABC):
    """Curvature plus a weight times the roughness."""

    @abstractmethod
    def times_roughness(self, numbers_KS: Float64) -> Float64:
        """Return the roughness times the numbers of each block."""

    @abstractmethod
    def factorize(self, curvature_C: Float64, weight: float) -> None:
        """Take the curvature of the log-likelihood by each cell's number, and the weight."""

    @abstractmethod
    def solve(self, right_KS: Float64) -> Float64:
        """Solve for a right-hand side."""

    @abstractmethod
    def roughness_trace(self) -> float:
        """Return the trace of the roughness times the inverse."""


def pair_matrix(spline: PairSpline) -> PairMatrix:
    """Return the matrix of a pair, given its knots."""
    if len(spline.knots) < 2 or np.prod(spline.knots) < MIN_BANDED:
        return DenseBlocks(spline)
    return BandedGrid(spline)


class DenseBlocks(PairMatrix):
    """The inverse of each block as a whole.

    Of a number and a category, a block is that of one bin of the category; of two categories, it is one cell.
    """

    def __init__(self, spline: PairSpline) -> None:
        self._spline = spline
        ordered = len(spline.knots) > 0, len(spline.knots) > 1
        self.roughness_SS = pair_roughness((*spline.knots, 1, 1)[:2], ordered, PAIR_DIFFERENCES)

    def times_roughness(self, numbers_KS: Float64) -> Float64:
        return numbers_KS @ self.roughness_SS

    def factorize(self, curvature_C: Float64, weight: float) -> None:
        matrix_KSS = self._spline.curvature(curvature_C) + weight * self.roughness_SS
        numbers = np.arange(len(self.roughness_SS))
        matrix_KSS[:, numbers, numbers] += EMPTY_RIDGE
        self._inverse_KSS = _inverses(matrix_KSS)

    def solve(self, right_KS: Float64) -> Float64:
        solved_KS: Float64 = (self._inverse_KSS @ right_KS[:, :, None])[:, :, 0]
        return solved_KS

    def roughness_trace(self) -> float:
        return float((self._inverse_KSS * self.roughness_SS).sum())


class BandedGrid(PairMatrix):
    """A grid of knots of two numbers, in which each row is coupled only with the next two.

    In groups of two rows, the matrix is block tridiagonal: its factor and the inverse within its bands take time in
    proportion to the groups (Takahashi, Fagan and Chin 1973), not to their cube.
    """

    def __init__(self, spline: PairSpline) -> None:
        self._spline = spline
        self._first_II, self._second_JJ = (side_roughness(knots, True, PAIR_DIFFERENCES) for knots in spline.knots)
        rows, columns = spline.knots
        bands_3IJJ = np.zeros((3, rows, columns, columns))
        for distance, band_IJJ in enumerate(bands_3IJJ):
            diagonal = np.diag(self._first_II, distance)
            band_IJJ[: len(diagonal)] = diagonal[:, None, None] * np.eye(columns)
        bands_3IJJ[0] += self._second_JJ
        self._roughness = _in_groups(bands_3IJJ)

    def times_roughness(self, numbers_KS: Float64) -> Float64:
        numbers_IJ = numbers_KS.reshape(self._spline.knots)
        return (self._first_II @ numbers_IJ + numbers_IJ @ self._second_JJ).reshape(1, -1)

    def factorize(self, curvature_C: Float64, weight: float) -> None:
        near_2IJJ = self._spline.curvature_bands(curvature_C)
        bands_3IJJ = np.concatenate([near_2IJJ, np.zeros_like(near_2IJJ[:1])])
        numbers = np.arange(self._spline.knots[1])
        bands_3IJJ[0][:, numbers, numbers] += EMPTY_RIDGE
        diagonals_GPP, belows_GPP = _in_groups(bands_3IJJ, filler=1.0)
        diagonals_GPP += weight * self._roughness[0]
        belows_GPP += weight * self._roughness[1]
        self._pivots_GPP, self._factors_GPP = np.empty_like(diagonals_GPP), np.empty_like(belows_GPP)
        self._pivots_GPP[0] = _inverse(diagonals_GPP[0])
        for group, below_PP in enumerate(belows_GPP):
            self._factors_GPP[group] = below_PP @ self._pivots_GPP[group]
            self._pivots_GPP[group + 1] = _inverse(diagonals_GPP[group + 1] - self._factors_GPP[group] @ below_PP.T)

    def solve(self, right_KS: Float64) -> Float64:
        groups, size, _ = self._pivots_GPP.shape
        right_GP = np.zeros((groups, size))
        right_GP.ravel()[: right_KS.size] = right_KS
        for group, factor_PP in enumerate(self._factors_GPP):
            right_GP[group + 1] -= factor_PP @ right_GP[group]
        solved_GP: Float64 = (self._pivots_GPP @ right_GP[:, :, None])[:, :, 0]
        for group in range(groups - 2, -1, -1):
            solved_GP[group] -= self._factors_GPP[group].T @ solved_GP[group + 1]
        return solved_GP.ravel()[: right_KS.size].reshape(1, -1)

    def roughness_trace(self) -> float:
        diagonals_GPP, belows_GPP = self._roughness
        inverse_PP = self._pivots_GPP[-1]
        trace = float((diagonals_GPP[-1] * inverse_PP).sum())
        for group in range(len(belows_GPP) - 1, -1, -1):
            factor_PP = self._factors_GPP[group]
            below_PP = -inverse_PP @ factor_PP
            inverse_PP = self._pivots_GPP[group] - factor_PP.T @ below_PP
            trace += float((diagonals_GPP[group] * inverse_PP).sum() + 2 * (belows_GPP[group] * below_PP).sum())
        return trace


def _in_groups(bands_3IJJ: Float64, filler: float = 0.0) -> tuple[Float64, Float64]:
    """Return the blocks on and below the diagonal of a matrix whose rows of knots are taken two by two, ``(G, P, P)``.

    Args:
        bands_3IJJ: Symmetric blocks that couple each row of knots with itself, the next one and the one after.
        filler: Diagonal of the row that is added to an odd number of rows.
    """
    if bands_3IJJ.shape[1] % 2:
        bands_3IJJ = np.pad(bands_3IJJ, ((0, 0), (0, 1), (0, 0), (0, 0)))
        bands_3IJJ[0, -1] += filler * np.eye(bands_3IJJ.shape[2])
    same, next_one, second = bands_3IJJ
    diagonals_GPP = np.block([[same[::2], next_one[::2]], [next_one[::2], same[1::2]]])
    belows_GPP = np.block([[second[::2], next_one[1::2]], [np.zeros_like(second[::2]), second[1::2]]])
    return diagonals_GPP, belows_GPP[:-1]


def _inverses(matrix_KSS: Float64) -> Float64:
    """Return the inverse of each matrix; they are symmetric and positive definite."""
    if matrix_KSS.shape[1] == 1:
        return 1 / matrix_KSS
    if len(matrix_KSS) == 1:
        return _inverse(matrix_KSS[0])[None]
    return np.asarray(np.linalg.inv(matrix_KSS), np.float64)


def _inverse(matrix_CC: Float64) -> Float64:
    """Return the inverse of a symmetric, positive definite matrix, in two thirds of the time of a general one."""
    inverse_CC: Float64 = torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(matrix_CC))).numpy()
    return inverse_CC
