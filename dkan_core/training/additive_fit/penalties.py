"""The penalties of a penalized fit: for each kind of term, a weight times a quadratic form of its numbers.

A penalty knows the curvature of the likelihood by its term's numbers, takes Newton steps, and adapts its weight.

Shape suffixes: C codes of a term, S numbers of each of its K blocks.
"""

import functools
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from dkan_core.model.additive_shape import SCORE_CODES
from dkan_core.training.additive_fit.band_factor import BandFactor
from dkan_core.training.additive_fit.pair_matrices import EMPTY_RIDGE, pair_matrix
from dkan_core.training.additive_fit.pair_splines import MORE_KNOTS, PairSpline
from dkan_core.training.additive_fit.roughness import second_difference_bands
from dkan_core.utils.arrays import Float64

# The greatest weight, at which a term is a line or nothing, and the largest factor of an update.
MOST_WEIGHT, MAX_FACTOR = 1e6, 10.0
# Weight of the squared slope of a curve, which second differences do not penalize: almost 0 at the start, which is also
# the minimum. Slopes that were shrunk at the start would stay so.
START_SLOPE_WEIGHT = 1e-4
# Factor of an update of a pair's weight: the update looks at a term by itself, as though no other one explained the
# same rows, and so makes the weight too large, above all for pairs, which overlap most.
PAIR_FACTOR = 0.65
# A pair whose weight is no more than this is as rough as its knots allow, as geographic pairs are: it gets more knots.
# If these are still too few, its weight falls almost to the minimum: to the second number or less.
SHARP_PAIR_WEIGHT, SHARPEST_PAIR_WEIGHT = 1.0, 0.15
# Curvature of a missing value's own number, on top of what penalties add.
MISSING_RIDGE = 1.0
# The same for a curve's numbers. At first, lines are hardly penalized: a line through a common value and a rare one
# beside it, whose few rows have one class, would grow without bound, to thousands of log-odds over codes that no row
# has. For a line over 4 log-odds, this costs 0.2 nats.
CURVE_RIDGE = 1e-3


class Penalty(ABC):
    """The penalty of one term."""

    start_weight: ClassVar[float]
    least_weight: ClassVar[float]

    def __init__(self) -> None:
        self.weight = self.start_weight

    @abstractmethod
    def factorize(self, curvature_C: Float64) -> None:
        """Take the curvature of the log-likelihood by each code's number."""

    @abstractmethod
    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        """Return the Newton step from a table, given the gradient of the log-likelihood."""

    @abstractmethod
    def adapt(self, table_C: Float64) -> None:
        """Give the penalty the weight that explains a table best; the next step has to be factorized again."""

    @property
    def is_settled(self) -> bool:
        """Whether the weight has reached its maximum, where it stays."""
        return self.weight >= MOST_WEIGHT


class CodesPenalty(Penalty):
    """Squares, for numbers without neighbours."""

    start_weight, least_weight = 3.0, 0.3

    def factorize(self, curvature_C: Float64) -> None:
        self._inverse_C = 1 / (curvature_C + self.weight)

    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        return self._inverse_C * (gradient_C - self.weight * table_C)

    def adapt(self, table_C: Float64) -> None:
        used, square = float(self._inverse_C.sum()), float(table_C @ table_C)
        self.weight = _adapted(self.weight, len(table_C), used, square, self.least_weight)


class CurvePenalty(Penalty):
    """Squared second differences of a curve, with a weight of its own for the square of its slope.

    Curvature and roughness are a band, and the slope adds a product of one vector: a step takes time in proportion to
    the codes (Sherman and Morrison 1950, doi:10.1214/aoms/1177729893).
    """

    start_weight, least_weight = 100.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.slope_weight = START_SLOPE_WEIGHT
        self.ridge_C = np.full(SCORE_CODES, CURVE_RIDGE)
        self.ridge_C[0] = MISSING_RIDGE

    def factorize(self, curvature_C: Float64) -> None:
        bands_3C = self.weight * _roughness_bands()
        bands_3C[0] += curvature_C + self.ridge_C
        self._factor = BandFactor(bands_3C)
        self._of_slope_C = self._factor.solve(curve_slope())
        self._slope_variance = float(curve_slope() @ self._of_slope_C)
        self._shrinkage = self.slope_weight / (1 + self.slope_weight * self._slope_variance)

    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        slope_C = curve_slope()
        held_C = self.ridge_C * table_C + self.slope_weight * (table_C @ slope_C) * slope_C
        held_C[1:] += self.weight * np.convolve(_bends(table_C), [1.0, -2.0, 1.0])
        solved_C = self._factor.solve(gradient_C - held_C)
        return solved_C - self._shrinkage * (slope_C @ solved_C) * self._of_slope_C

    def adapt(self, table_C: Float64) -> None:
        bends, bends_of_slope = _bends(table_C), _bends(self._of_slope_C)
        diagonal_C, *others = self._factor.inverse_bands() * _roughness_bands()
        used = diagonal_C.sum() + 2 * sum(each.sum() for each in others)
        used -= self._shrinkage * (bends_of_slope @ bends_of_slope)
        # The number of a missing value and lines have no second differences.
        rank = len(table_C) - 3
        self.weight = _adapted(self.weight, rank, float(used), float(bends @ bends), self.least_weight)

    def adapt_slope(self, table_C: Float64) -> None:
        """Adapt the weight of the slope."""
        used = self._slope_variance * (1 - self._shrinkage * self._slope_variance)
        slope = float(curve_slope() @ table_C)
        self.slope_weight = _adapted(self.slope_weight, 1, used, slope**2, START_SLOPE_WEIGHT)

    @property
    def is_settled(self) -> bool:
        """Whether both weights have reached their maximum, where they stay."""
        return self.weight >= MOST_WEIGHT and self.slope_weight >= MOST_WEIGHT


class PairPenalty(Penalty):
    """Squared differences, of both orders, between neighbouring cells of a pair; squares where there are none.

    Args:
        spline: The knots whose numbers are fitted.
    """

    start_weight, least_weight = 10.0, 0.1

    def __init__(self, spline: PairSpline) -> None:
        super().__init__()
        self._take(spline)

    def _take(self, spline: PairSpline) -> None:
        self.spline, self.matrix = spline, pair_matrix(spline)

    def factorize(self, curvature_C: Float64) -> None:
        self.matrix.factorize(curvature_C, self.weight)

    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        numbers_KS = self.spline.at_knots(table_C)
        held_KS = self.weight * self.matrix.times_roughness(numbers_KS) + EMPTY_RIDGE * numbers_KS
        return self.spline.to_cells(self.matrix.solve(self.spline.project(gradient_C) - held_KS))

    def adapt(self, table_C: Float64) -> None:
        numbers_KS = self.spline.at_knots(table_C)
        square, used = (
            float((self.matrix.times_roughness(numbers_KS) * numbers_KS).sum()),
            self.matrix.roughness_trace(),
        )
        self.weight = _adapted(self.weight, numbers_KS.size, used, square, self.least_weight, PAIR_FACTOR)

    def sharpen(self, table_C: Float64) -> Float64 | None:
        """Give more knots to a pair that is as rough as its knots allow.

        Returns:
            The table with the same numbers at the new knots; None where there are no more of them.
        """
        if self.weight > SHARP_PAIR_WEIGHT:
            return None
        finer = self.spline.with_more_knots(table_C)
        if finer is None:
            return None
        self._take(finer)
        return finer.to_cells(finer.at_knots(table_C))

    @property
    def is_sharpest(self) -> bool:
        """Whether a pair of continuous numbers is still too rough for the knots that ``sharpen`` gave both sides."""
        has_more_knots = self.spline.max_knots == (MORE_KNOTS, MORE_KNOTS)
        return has_more_knots and self.spline.is_of_fine_numbers and self.weight <= SHARPEST_PAIR_WEIGHT


def _adapted(weight: float, rank: int, used: float, square: float, least: float, factor: float = 1.0) -> float:
    """Return the weight of a penalty by the update of Fellner and Schall.

    Args:
        weight: Current weight.
        rank: Rank of the penalty's matrix.
        used: Trace of that matrix times the inverse of curvature and penalties.
        square: The penalty of what is estimated, without its weight.
        least: Minimum of the weight.
        factor: Factor of the update.
    """
    unexplained = factor * max(rank / weight - used, np.finfo(np.float64).tiny)
    change = unexplained / max(square, unexplained / MAX_FACTOR)
    return min(MOST_WEIGHT, max(least, weight * max(1 / MAX_FACTOR, change)))


@functools.cache
def curve_slope() -> Float64:
    """Return the unit vector whose product with a curve is its slope; the missing value does not count."""
    centered = np.arange(SCORE_CODES - 1) - (SCORE_CODES - 2) / 2
    slope_C: Float64 = np.concatenate([[0.0], centered / np.linalg.norm(centered)])
    return slope_C


def _bends(curve_C: Float64) -> Float64:
    """Return a curve's second differences; a missing value has none."""
    return np.diff(curve_C[1:], n=2)


@functools.cache
def _roughness_bands() -> Float64:
    """Return the bands of a curve's squared second differences; the first code, a missing value, has none."""
    return np.pad(second_difference_bands(SCORE_CODES - 1), ((0, 0), (1, 0)))
