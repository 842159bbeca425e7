"""Tables of an additive model by penalized likelihood, each term as smooth as the data ask for.

Newton steps of one term after the other (backfitting: Hastie and Tibshirani 1986, doi:10.1214/ss/1177013604), with a
quadratic penalty on each term (P-splines: Eilers and Marx 1996, doi:10.1214/ss/1038425655), and another one on the
slope of curves (Marra and Wood 2011, doi:10.1016/j.csda.2011.02.004). A penalty's weight is the one under which the
term's prior explains the estimate best, by the update of Fellner and Schall (Wood and Fasiolo 2017,
doi:10.1111/biom.12666): a term that is noise is drawn to nothing, and no validation is needed.

Shape suffixes: N rows, T terms, V rows of the table, C codes of a term, S numbers of each of its K blocks.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.model.additive_shape import SCORE_CODES, AdditiveShape, Layout, Term
from dkan_core.training.likelihood import Float64, LogisticLikelihood, UInt16
from dkan_core.training.validation.pair_splines import PairSpline

# Passes over the terms; the weights of penalties are updated in every second one from the third on.
ROUNDS, FIRST_UPDATE, UPDATE_EVERY = 16, 2, 2
# Weights to begin with of curves, of terms without neighbours, and of pairs; the least ones; the greatest one, at which
# a term is a line or nothing; and the largest factor of an update.
START_WEIGHTS = {"curve": 100.0, "codes": 3.0, "pair": 10.0}
LEAST_WEIGHTS = {"curve": 1.0, "codes": 0.3, "pair": 0.1}
MOST_WEIGHT, MAX_FACTOR = 1e6, 10.0
# Weight of the squared slope of a curve, which second differences leave free: next to nothing to begin with, which is
# also the least, and adapted from the pass with the second number on, counted from 0. Columns that are alike take many
# passes to share out what they say; slopes that were held back before would stay so.
START_SLOPE_WEIGHT, FIRST_SLOPE_UPDATE = 1e-4, 8
# What an update of a pair's weight is multiplied by: it takes the term by itself, as though no other one explained the
# same rows, and so asks for too much; of pairs, which overlap most, above all.
PAIR_FACTOR = 0.65
# What the squared first and second differences of a pair's neighbouring cells count: the less the first ones do, the
# freer is a plane or a product of both sides, which is what is left of strong pairs.
PAIR_DIFFERENCES = (0.05, 1.0)
# A pair whose weight is no more than the first number at the beginning of the pass with the second one, counted from 0,
# is as rough as its knots allow, as geographic ones are: it gets more of them.
SHARP_PAIR_WEIGHT, SHARP_PAIRS_AT = 1.0, 8
# Log-odds by which one Newton step changes a row at most. Where one column tells all of few positives apart, a full
# step is far too long, as the likelihood is no parabola; from there, where it is flat, the next one has no bound.
MAX_STEP = 8.0
# Curvature of a missing value's own number and of cells without rows, besides what penalties add.
MISSING_RIDGE, EMPTY_RIDGE = 1.0, 1e-6
# The same of a curve's numbers. Lines are hardly penalized at first: one through a common value and a rare one beside
# it, whose few rows are all of one class, would grow without end, and over codes that no row has to thousands of
# log-odds. Of a line by 4 log-odds this takes 0.2 nats.
CURVE_RIDGE = 1e-3


@dataclass(kw_only=True)
class PenalizedTerm:
    """One term, its codes in all rows, and its penalty: a weight times a quadratic form of its numbers."""

    term: Term
    codes_N: UInt16
    kind: Literal["curve", "codes", "pair"]
    """What is penalized: squared second differences of neighbours, squares, squared differences of both orders."""

    roughness_SS: Float64 | None
    """Matrix of the penalty, the same for each block of numbers; None: the identity.

    Of a number and a category, a block is that of one bin of the category; of two categories, it is one cell.
    """

    spline: PairSpline | None = None
    """Where the numbers are those of knots; None: those of codes."""

    sign: int = 0
    """1 where the term is never to fall, -1 never to rise."""

    weight: float = field(init=False)
    slope_weight: float = field(init=False, default=START_SLOPE_WEIGHT)
    curvature_C: Float64 = field(init=False)
    inverse_KSS: Float64 = field(init=False)
    """Inverse of curvature and penalty, of each block; ``(C,)`` where both are diagonal."""

    def __post_init__(self) -> None:
        self.weight = START_WEIGHTS[self.kind]
        size = self.term.size if self.roughness_SS is None else len(self.roughness_SS)
        self.ridge_S = np.full(size, {"curve": CURVE_RIDGE, "codes": 0.0, "pair": EMPTY_RIDGE}[self.kind])
        if self.kind == "curve":
            self.ridge_S[0] = MISSING_RIDGE

    def factorize(self, curvature_C: Float64) -> None:
        """Take the curvature of the log-likelihood."""
        self.curvature_C = curvature_C
        if self.roughness_SS is None:
            self.inverse_KSS = 1 / (curvature_C + self.ridge_S + self.weight)
            return
        matrix_KSS = self.spline.curvature(curvature_C) if self.spline else _diagonal(self._by_block(curvature_C))
        numbers = np.arange(len(self.ridge_S))
        matrix_KSS[:, numbers, numbers] += self.ridge_S
        matrix_KSS += self.weight * self.roughness_SS
        if self.kind == "curve":
            matrix_KSS += self.slope_weight * np.outer(curve_slope(), curve_slope())
        self.inverse_KSS = _inverses(matrix_KSS)

    def _by_block(self, values_C: Float64) -> Float64:
        """Return the codes' numbers by block, ``(K, S)``."""
        return values_C.reshape(-1, len(self.ridge_S))

    def _numbers(self, table_C: Float64) -> Float64:
        """Return the numbers that are fitted, ``(K, S)``."""
        return self.spline.at_knots(table_C) if self.spline else self._by_block(table_C)

    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        """Return the Newton step from a table, given the gradient of the log-likelihood."""
        if self.roughness_SS is None:
            return self.inverse_KSS * (gradient_C - self.weight * table_C)
        numbers_KS = self._numbers(table_C)
        gradient_KS = self.spline.project(gradient_C) if self.spline else self._by_block(gradient_C)
        slope_KS = self.weight * (numbers_KS @ self.roughness_SS) + self.ridge_S * numbers_KS
        if self.kind == "curve":
            slope_KS += self.slope_weight * np.outer(numbers_KS @ curve_slope(), curve_slope())
        step_KS = (self.inverse_KSS @ (gradient_KS - slope_KS)[:, :, None])[:, :, 0]
        step_C = self.spline.to_cells(step_KS) if self.spline else step_KS.ravel()
        return self.monotone(table_C + step_C) - table_C if self.sign else step_C

    def monotone(self, table_C: Float64) -> Float64:
        """Return the nearest table that is monotone from the first code on that stands for no missing value."""
        from sklearn.isotonic import isotonic_regression

        weight_C = self.curvature_C[1:] + EMPTY_RIDGE
        rising_C = isotonic_regression(table_C[1:], sample_weight=weight_C, increasing=self.sign > 0)
        return np.concatenate([table_C[:1], rising_C])

    def sharpen(self, table_C: Float64) -> Float64 | None:
        """Give a pair that is as rough as its knots allow more of them.

        Returns:
            The table with the same numbers at the new knots; None where there are no more of them.
        """
        if self.spline is None or self.weight > SHARP_PAIR_WEIGHT:
            return None
        finer = self.spline.with_more_knots(table_C)
        if finer is None:
            return None
        self.spline, self.roughness_SS = finer, _block_roughness(finer.knots)
        self.ridge_S = np.full(len(self.roughness_SS), EMPTY_RIDGE)
        return finer.to_cells(finer.at_knots(table_C))

    @property
    def is_settled(self) -> bool:
        """Whether the weights are as great as can be: there they stay."""
        return self.weight >= MOST_WEIGHT and (self.kind != "curve" or self.slope_weight >= MOST_WEIGHT)

    def adapt(self, table_C: Float64) -> None:
        """Give the penalty the weight that explains a table best; the next step has to be factorized anew."""
        if self.roughness_SS is None:
            count, used, square = self.term.size, self.inverse_KSS.sum(), table_C @ table_C
        else:
            numbers_KS = self._numbers(table_C)
            count = numbers_KS.size
            used = (self.inverse_KSS * self.roughness_SS).sum()
            square = ((numbers_KS @ self.roughness_SS) * numbers_KS).sum()
        # Lines have no second differences.
        rank = count - (3 if self.kind == "curve" else 0)
        factor = PAIR_FACTOR if self.kind == "pair" else 1.0
        self.weight = _adapted(self.weight, rank, float(used), float(square), LEAST_WEIGHTS[self.kind], factor)

    def adapt_slope(self, table_C: Float64) -> None:
        """Do the same with the penalty of a curve's slope."""
        slope_C = curve_slope()
        used, slope = float(slope_C @ self.inverse_KSS[0] @ slope_C), float(slope_C @ table_C)
        self.slope_weight = _adapted(self.slope_weight, 1, used, slope**2, START_SLOPE_WEIGHT)


def _adapted(weight: float, rank: int, used: float, square: float, least: float, factor: float = 1.0) -> float:
    """Return the weight of a penalty by the update of Fellner and Schall.

    Args:
        weight: The present one.
        rank: Of the penalty's matrix.
        used: Trace of that matrix times the inverse of curvature and penalties.
        square: The penalty of what is estimated, without its weight.
        least: The weight is no less.
        factor: What the update is multiplied by.
    """
    unexplained = factor * max(rank / weight - used, np.finfo(np.float64).tiny)
    change = unexplained / max(square, unexplained / MAX_FACTOR)
    return min(MOST_WEIGHT, max(least, weight * max(1 / MAX_FACTOR, change)))


def penalized_terms(
    layout: Layout, shape: AdditiveShape, monotone: Mapping[int, int], codes_TN: Sequence[UInt16]
) -> list[PenalizedTerm]:
    """Return the terms of a layout with their penalties.

    Args:
        layout: The terms.
        shape: What the layout is of: where bins begin.
        monotone: 1 for features along which log-odds never fall, -1 where they never rise.
        codes_TN: Each row's code of each term of the layout.
    """
    curved = {term.features[0] for term in layout.curved}
    found = []
    for term, codes_N in zip(layout.terms, codes_TN, strict=True):
        kind: Literal["curve", "codes", "pair"] = "codes"
        roughness_SS: Float64 | None = None
        spline: PairSpline | None = None
        if term in layout.curved:
            kind, roughness_SS = "curve", curve_roughness()
        elif term in layout.pairs:
            kind = "pair"
            cuts = tuple(shape.cuts_of(feature) if feature in curved else None for feature in term.features)
            spline = PairSpline(term.shape, cuts) if any(cuts) else None
            roughness_SS = _block_roughness(spline.knots if spline else ())
        found.append(
            PenalizedTerm(
                term=term,
                codes_N=codes_N,
                kind=kind,
                roughness_SS=roughness_SS,
                spline=spline,
                sign=monotone.get(term.features[0], 0) if len(term.features) == 1 else 0,
            )
        )
    return found


def _block_roughness(knots: tuple[int, ...]) -> Float64:
    """Return ``pair_roughness`` of one block.

    Args:
        knots: Of each side with neighbours.
    """
    if len(knots) == 2:
        return pair_roughness(knots, (True, True), PAIR_DIFFERENCES)
    if not knots:
        return np.full((1, 1), 2.0)
    return side_roughness(knots[0], True, PAIR_DIFFERENCES) + np.eye(knots[0])


@functools.cache
def curve_slope() -> Float64:
    """Return what a curve is multiplied by to get its slope; its length is 1, and a missing value does not count."""
    centered = np.arange(SCORE_CODES - 1) - (SCORE_CODES - 2) / 2
    slope_C: Float64 = np.concatenate([[0.0], centered / np.linalg.norm(centered)])
    return slope_C


@functools.cache
def curve_roughness() -> Float64:
    """Return the matrix of a curve's squared second differences; the first code, a missing value, has none."""
    differences = np.zeros((SCORE_CODES - 3, SCORE_CODES))
    differences[:, 1:] = np.diff(np.eye(SCORE_CODES - 1), n=2, axis=0)
    roughness_CC: Float64 = differences.T @ differences
    return roughness_CC


def pair_roughness(
    shape: tuple[int, ...], ordered: Sequence[bool], differences: tuple[float, float] = (1.0, 0.0)
) -> Float64:
    """Return the matrix of the squared differences between a pair's neighbouring cells ``(C, C)``.

    Args:
        shape: Bins of both sides.
        ordered: Whether a side's bins have neighbours; those of a category are held against zero.
        differences: What first and second differences count.
    """
    first_II, second_JJ = (side_roughness(*each, differences) for each in zip(shape, ordered, strict=True))
    roughness_CC: Float64 = np.kron(first_II, np.eye(shape[1])) + np.kron(np.eye(shape[0]), second_JJ)
    return roughness_CC


def side_roughness(size: int, ordered: bool, differences: tuple[float, float] = (1.0, 0.0)) -> Float64:
    """Return the matrix of the squared differences of neighbours; the first bin is that of missing values.

    >>> side_roughness(4, True).astype(int).tolist()
    [[1, 0, 0, 0], [0, 1, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]]
    """
    if not ordered:
        return np.eye(size)
    roughness = np.zeros((size, size))
    roughness[0, 0] = 1
    for order, count in enumerate(differences, start=1):
        if count and size - 1 > order:
            steps = np.diff(np.eye(size - 1), n=order, axis=0)
            roughness[1:, 1:] += count * (steps.T @ steps)
    return roughness


def _diagonal(values_KS: Float64) -> Float64:
    """Return matrices with some numbers on their diagonals, ``(K, S, S)``."""
    return values_KS[:, :, None] * np.eye(values_KS.shape[1])


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


def damped(step_C: Float64) -> Float64:
    """Return a Newton step that changes no log-odds by more than ``MAX_STEP``, in the same direction.

    >>> damped(np.array([1.0, -2.0])).tolist(), damped(np.array([4.0, -16.0])).tolist()
    ([1.0, -2.0], [2.0, -8.0])
    """
    largest = np.abs(step_C).max()
    return step_C if largest <= MAX_STEP else step_C * (MAX_STEP / largest)


class PenalizedFit:
    """The tables of one label.

    Args:
        terms: The terms, in the order of the table. Their penalties are changed where ``fit`` adapts them.
        target_N: 0 or 1.
        weight_N: What each row counts.
    """

    def __init__(self, terms: Sequence[PenalizedTerm], target_N: npt.ArrayLike, weight_N: npt.ArrayLike) -> None:
        self.terms, self.rows = terms, LogisticLikelihood(target_N, weight_N)
        self.intercept = self.rows.prior()
        self.table_V = np.zeros(sum(each.term.size for each in terms))

    def start_at(self, other: "PenalizedFit") -> None:
        """Start at the tables of another fit of the same rows."""
        self.intercept, self.table_V = other.intercept, other.table_V.copy()
        self.rows.log_odds_N = other.rows.log_odds_N.copy()

    def fit(self, rounds: int = ROUNDS, *, adapt: bool = True) -> None:
        """Take Newton steps of all terms.

        Args:
            rounds: How many of each term.
            adapt: Whether the penalties' weights are adapted to the terms.
        """
        for number in range(rounds):
            if adapt and number == SHARP_PAIRS_AT:
                self._sharpen()
            adapts = adapt and number >= FIRST_UPDATE and number % UPDATE_EVERY == 0
            for each in self.terms:
                changes = adapts and not each.is_settled
                if changes:
                    each.adapt(self.table_V[each.term.rows])
                if changes and each.kind == "curve" and number >= FIRST_SLOPE_UPDATE:
                    each.adapt_slope(self.table_V[each.term.rows])
                self._update(each, factorize=changes or number < FIRST_UPDATE)
            self._center()

    def refine(self, rounds: int) -> None:
        """Take steps of all terms by the curvature and the penalties that another fit has left there."""
        for _ in range(rounds):
            for each in self.terms:
                self._update(each, factorize=False)
            self._center()

    def _sharpen(self) -> None:
        """Give more knots to the pairs that need them."""
        for each in self.terms:
            table_C = self.table_V[each.term.rows]
            sharper_C = each.sharpen(table_C)
            if sharper_C is not None:
                self._add(each, sharper_C - table_C)
                each.factorize(self.rows.sums(each.codes_N, each.term.size)[1])

    def _center(self) -> None:
        """Take a Newton step of the intercept."""
        gradient, curvature = self.rows.total()
        step = float(damped(np.array([gradient / max(curvature, EMPTY_RIDGE)]))[0])
        self.intercept += step
        self.rows.log_odds_N += step

    def _update(self, each: PenalizedTerm, *, factorize: bool) -> None:
        """Take a Newton step of one term."""
        gradient_C, curvature_C = self.rows.sums(each.codes_N, each.term.size)
        if factorize:
            each.factorize(curvature_C)
        self._add(each, damped(each.step(self.table_V[each.term.rows], gradient_C)))

    def _add(self, each: PenalizedTerm, step_C: Float64) -> None:
        """Add a step to one term's table."""
        self.table_V[each.term.rows] += step_C
        self.rows.add(each.codes_N, step_C)
