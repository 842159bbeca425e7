"""Tables of an additive model by penalized likelihood, each term as smooth as the data ask for.

Newton steps of one term after the other (backfitting: Hastie and Tibshirani 1986, doi:10.1214/ss/1177013604), with a
quadratic penalty on each term (P-splines: Eilers and Marx 1996, doi:10.1214/ss/1038425655), and another one on the
slope of curves (Marra and Wood 2011, doi:10.1016/j.csda.2011.02.004). A penalty's weight is the one under which the
term's prior explains the estimate best, by the update of Fellner and Schall (Wood and Fasiolo 2017,
doi:10.1111/biom.12666): a term that is noise is drawn to nothing, and no validation is needed.

Shape suffixes: N rows, T terms, V rows of the table, C codes of a term.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dkan_core.model.additive_shape import AdditiveShape, Layout, Term
from dkan_core.training.additive_fit.id_effects import IdEffects
from dkan_core.training.additive_fit.pair_matrices import EMPTY_RIDGE
from dkan_core.training.additive_fit.pair_splines import KNOTS, MOST_KNOTS, PairSpline
from dkan_core.training.additive_fit.penalties import CodesPenalty, CurvePenalty, PairPenalty, Penalty
from dkan_core.training.likelihood import LogisticLikelihood, damped
from dkan_core.utils.arrays import Float64, UInt16

# Passes over the terms; the weights of penalties are updated in every second one from the third on.
ROUNDS, FIRST_UPDATE, UPDATE_EVERY = 16, 2, 2
# The pass, counted from 0, from which on the weights of slopes are adapted, and the one at whose beginning sharp pairs
# get more knots. Similar columns take many passes to divide their effect among them.
FIRST_SLOPE_UPDATE, SHARP_PAIRS_AT = 8, 10


@dataclass(kw_only=True)
class PenalizedTerm:
    """One term, its codes in all rows, and its penalty."""

    term: Term
    codes_N: UInt16
    penalty: Penalty
    sign: int = 0
    """1 where the term is never to fall, -1 never to rise."""

    curvature_C: Float64 = field(init=False)

    def factorize(self, curvature_C: Float64) -> None:
        """Take the curvature of the log-likelihood."""
        self.curvature_C = curvature_C
        self.penalty.factorize(curvature_C)

    def step(self, table_C: Float64, gradient_C: Float64) -> Float64:
        """Return the Newton step from a table, given the gradient of the log-likelihood."""
        step_C = self.penalty.step(table_C, gradient_C)
        return self.monotone(table_C + step_C) - table_C if self.sign else step_C

    def monotone(self, table_C: Float64) -> Float64:
        """Return the nearest table that is monotone over the codes that do not stand for a missing value."""
        from sklearn.isotonic import isotonic_regression

        weight_C = self.curvature_C[1:] + EMPTY_RIDGE
        rising_C = isotonic_regression(table_C[1:], sample_weight=weight_C, increasing=self.sign > 0)
        return np.concatenate([table_C[:1], rising_C])


def penalized_terms(
    layout: Layout,
    shape: AdditiveShape,
    monotone: Mapping[int, int],
    codes_TN: Sequence[UInt16],
    sharpest: Collection[tuple[int, ...]] = (),
) -> list[PenalizedTerm]:
    """Return the terms of a layout with their penalties.

    Args:
        layout: The terms.
        shape: The shape that the layout was made of: it says where bins begin.
        monotone: 1 for features along which log-odds never fall, -1 where they never rise.
        codes_TN: Each row's code of each term of the layout.
        sharpest: Features of the pairs that have the most knots.
    """
    return [
        PenalizedTerm(
            term=term,
            codes_N=codes_N,
            penalty=_penalty_of(term, layout, shape, MOST_KNOTS if term.features in sharpest else KNOTS),
            sign=monotone.get(term.features[0], 0) if len(term.features) == 1 else 0,
        )
        for term, codes_N in zip(layout.terms, codes_TN, strict=True)
    ]


def _penalty_of(term: Term, layout: Layout, shape: AdditiveShape, knots: int) -> Penalty:
    if term in layout.curved:
        return CurvePenalty()
    if term not in layout.pairs:
        return CodesPenalty()
    curved = {each.features[0] for each in layout.curved}
    cuts = tuple(shape.cuts_of(feature) if feature in curved else None for feature in term.features)
    return PairPenalty(PairSpline(term.shape, cuts, (knots, knots)))


class PenalizedFit:
    """The tables of one label.

    Args:
        terms: The terms, in the order of the table. Their penalties are changed where ``fit`` adapts them.
        target_N: 0 or 1.
        weight_N: Weight of each row.
        ids: Effects of ids of lists, if they have a term: the fit continues from them.
    """

    def __init__(
        self,
        terms: Sequence[PenalizedTerm],
        target_N: npt.ArrayLike,
        weight_N: npt.ArrayLike,
        ids: IdEffects | None = None,
    ) -> None:
        self.terms, self.rows, self.ids = terms, LogisticLikelihood(target_N, weight_N), copy.copy(ids)
        self.intercept = self.rows.prior()
        if self.ids is not None:
            self.rows.log_odds_N += self.ids.log_odds()
        self.table_V = np.zeros(sum(each.term.size for each in terms))

    def start_at(self, other: "PenalizedFit") -> None:
        """Start at the tables of another fit of the same rows."""
        self.intercept, self.table_V = other.intercept, other.table_V.copy()
        self.rows.log_odds_N = other.rows.log_odds_N.copy()

    def fit(self, rounds: int = ROUNDS, *, adapt: bool = True) -> None:
        """Take Newton steps of all terms."""
        for number in range(rounds):
            if adapt and number == SHARP_PAIRS_AT:
                self._sharpen()
            adapts = adapt and number >= FIRST_UPDATE and number % UPDATE_EVERY == 0
            for each in self.terms:
                changes = adapts and not each.penalty.is_settled
                if changes:
                    each.penalty.adapt(self.table_V[each.term.rows])
                if changes and isinstance(each.penalty, CurvePenalty) and number >= FIRST_SLOPE_UPDATE:
                    each.penalty.adapt_slope(self.table_V[each.term.rows])
                self._update(each, factorize=changes or number < FIRST_UPDATE)
            if self.ids is not None:
                self.intercept += self.ids.update(self.rows)
            self.intercept += self.rows.center()

    def refine(self, rounds: int) -> None:
        """Take steps of all terms with the curvature and the penalties that another fit has left in them."""
        for _ in range(rounds):
            for each in self.terms:
                self._update(each, factorize=False)
            self.intercept += self.rows.center()

    def _sharpen(self) -> None:
        """Give more knots to the pairs that need them."""
        for each in self.terms:
            table_C = self.table_V[each.term.rows]
            sharper_C = each.penalty.sharpen(table_C) if isinstance(each.penalty, PairPenalty) else None
            if sharper_C is not None:
                self._add(each, sharper_C - table_C)
                each.factorize(self.rows.sums(each.codes_N, each.term.size)[1])

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
