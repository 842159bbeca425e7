"""The cells of a term, one per value that is shown: its effect, its training rows, and how it is set.

The table may have two numbers for a value of a numeric column, that of its score and that of a frequent value. Only
their sum matters; setting the effect of a frequent value changes the latter.

Shape suffixes: C cells, V rows of the table.
"""

from dataclasses import dataclass

import numpy as np

from dkan_core.data.encoding.preprocessor import (
    FIRST_CODE,
    MISSING,
    UNSEEN,
    NumericFeature,
    Preprocessor,
    ValueFeature,
    normal_scores,
    quantize,
)
from dkan_core.explanation.additive import TermGroup
from dkan_core.model.additive_shape import Term
from dkan_core.model.additive_terms import AdditiveTerms
from dkan_core.utils.arrays import Float64, Int64

NONE = -1


@dataclass(frozen=True, kw_only=True)
class TermCells:
    """The values of a term, one after the other."""

    own_C: Int64
    """The row of the table that is set."""

    other_C: Int64
    """The row that is added to it; -1 for none."""

    weight_C: Float64
    """Rows of the training data."""

    code_C: Int64
    """The code of the score, or that of the category; 0 for a missing number."""

    value_C: Float64
    """A frequent value itself; NaN for others."""

    first_value: int
    """The first cell of a frequent value: these depend on the cells before."""

    ordered: bool
    """Whether the values are numbers."""

    def effects(self, table_V: Float64) -> Float64:
        """Return what each value adds."""
        return table_V[self.own_C] + np.where(self.other_C == NONE, 0.0, table_V[self.other_C])

    def put(self, table_V: Float64, effect_C: Float64) -> None:
        """Set what each value adds."""
        for part in (slice(0, self.first_value), slice(self.first_value, None)):
            other_C = self.other_C[part]
            table_V[self.own_C[part]] = effect_C[part] - np.where(other_C == NONE, 0.0, table_V[other_C])


def cells_of(group: TermGroup, terms: AdditiveTerms, preprocessor: Preprocessor) -> TermCells:
    """Return the values of a term."""
    parts = [terms.layout.terms[index] for index in group.indices]
    numeric = [part for part in parts if len(part.features) == 1 and part.features[0] < terms.config.num_numeric]
    if not numeric:
        return _plain(parts[0], terms.weight_V)
    values = next((part for part in parts if part not in numeric), None)
    if values is None:
        return _plain(numeric[0], terms.weight_V, ordered=True)
    feature = preprocessor.numeric[numeric[0].features[0]]
    coded = preprocessor.coded[values.features[0] - terms.config.num_numeric]
    assert isinstance(coded, ValueFeature)
    return _with_values(numeric[0], values, feature, coded, terms)


def _plain(term: Term, weight_V: Float64, *, ordered: bool = False) -> TermCells:
    codes = np.arange(term.size)
    return TermCells(
        own_C=term.first + codes,
        other_C=np.full(term.size, NONE),
        weight_C=weight_V[term.rows],
        code_C=codes,
        value_C=np.full(term.size, np.nan),
        first_value=term.size,
        ordered=ordered,
    )


def _with_values(
    term: Term, values: Term, feature: NumericFeature, coded: ValueFeature, terms: AdditiveTerms
) -> TermCells:
    """Return the cells of a number whose frequent values have numbers of their own."""
    known = coded.values[: values.size - FIRST_CODE]
    score_C = score_rows(terms, term, codes_of_values(known, feature))
    of_values = values.first + FIRST_CODE + np.arange(len(known))
    weight_V = terms.weight_V
    rest_C = weight_V[term.rows].copy()
    np.subtract.at(rest_C, score_C - term.first, weight_V[of_values])
    # A score's number adds to that of the code for values that are not frequent, in cell 0 to the code for missing.
    added = np.full(term.size, values.first + UNSEEN)
    added[0] = values.first + MISSING
    return TermCells(
        own_C=np.concatenate([term.first + np.arange(term.size), of_values]),
        other_C=np.concatenate([added, score_C]),
        weight_C=np.concatenate([rest_C.clip(min=0.0), weight_V[of_values]]),
        code_C=np.concatenate([np.arange(term.size), score_C - term.first]),
        value_C=np.concatenate([np.full(term.size, np.nan), known]),
        first_value=term.size,
        ordered=True,
    )


def codes_of_values(values: Float64, feature: NumericFeature) -> Int64:
    """Return the codes of the scores of some values."""
    return quantize(normal_scores(np.asarray(values, np.float64), feature), "uint8").astype(np.int64)


def score_rows(terms: AdditiveTerms, term: Term, codes_C: Int64) -> Int64:
    """Return the rows of the table of a numeric term that codes of scores take."""
    if term not in terms.layout.binary:
        return term.first + codes_C
    assert terms.config.additive is not None
    upper = terms.config.additive.upper[terms.layout.binary.index(term)]
    return term.first + np.where(codes_C == 0, 0, np.where(codes_C >= upper, 2, 1))
