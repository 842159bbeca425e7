"""Which codes deserve weights of their own: chosen before training, by how well they predict rows they have not seen.

An additive model of every feature is fitted on each half of a sample of the train split. A candidate is a coded numeric
column (do its exact values add to its smooth curve?) or a cross of coded columns (does the pair add to the sum?). Its
effect is estimated on the residuals of one half's model on that half, and judged by the loss that model and effect save
on the other half, so a candidate that only fits noise loses. (Estimated on residuals of the other half's model, the
effect would also fit that model's noise, which has the opposite sign where it is judged, and good candidates would
lose.) An accepted candidate joins the additive model, and the next one is judged on top. All pairs are judged once, and
the best ones again and again; an accepted pair may grow by a third column. Rows of a group are in one half, as what
holds for some rows of a group holds for its others, and not for new groups.

The pairwise search is that of FAST (Lou et al. 2013, doi:10.1145/2487575.2487579), here cross-fitted and greedy.

Shape suffixes: N rows.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.data.encoding.preprocessor import MISSING, SCORE_LIMIT, UNSEEN, Preprocessor
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.loader import RowReader, read_sample
from dkan_core.model.architecture import MAX_ONE_HOT_CODES
from dkan_core.model.decoding import decode_scores
from dkan_core.training.likelihood import MAX_CODES, LogisticLikelihood
from dkan_core.utils.arrays import Arrays, Float64, UInt16

# Most labels (rows times labels), and values (rows times columns), of the sample, which takes a second or two.
SAMPLE_LABELS, SAMPLE_VALUES = 200_000, 8_000_000

# Most coded columns of which all pairs are judged: their number grows with the square.
MAX_CROSSED = 64
# Best pairs that are judged again after each one that is taken.
MAX_SHORTLIST = 24
MAX_CROSSES = 4
# Columns of a cross, at most.
MAX_ORDER = 3
# Log-likelihood, in nats over the sample, that exact values and a cross must save on unseen rows, beyond one nat per
# ``CODES_PER_NAT`` codes: each code has a vector of weights, which takes time in every step and may be memorized. The
# best of many candidates gains a few nats by chance.
MIN_VALUE_GAIN, MIN_CROSS_GAIN = 10.0, 10.0
CODES_PER_NAT = 25

# Exact values of a column with so many rows per code are always kept: they cost little, and may help in combinations.
PLENTIFUL_ROWS = 5_000

# The additive model of the smooth columns: bins of a numeric column, rounds of boosting, and the share of each step.
BINS = 32
ROUNDS = 8
# Curvature added to each code's, which draws the effect of codes with few rows towards 0.
SHRINKAGE = 5.0
LEARNING_RATE = 0.5

Group = tuple[int, ...]


def search_sample(reader: RowReader, *, columns: int, labels: int) -> Arrays:
    """Return a sample of a split, with as many rows as the search looks at."""
    return read_sample(reader, min(SAMPLE_LABELS // labels, SAMPLE_VALUES // columns))


def choose_missing(preprocessor: Preprocessor, sample: Arrays, one_hot_groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the coded features with missing values that have no weights of their own in ``one_hot_groups``."""
    alone = {group[0] for group in one_hot_groups if len(group) == 1}
    left = [index for index in range(len(preprocessor.coded)) if index not in alone]
    return tuple(index for index in left if (sample["categorical"][:, index] == MISSING).any())


def choose_one_hot_groups(preprocessor: Preprocessor, sample: Arrays, train_rows: int) -> tuple[Group, ...]:
    """Return the groups of coded features whose joint value gets weights of its own.

    A category is always a group. A numeric column's values are a group if they predict unseen rows, or have plenty of
    rows; a cross is one if it predicts unseen rows.

    Args:
        preprocessor: The encoding; a group holds indexes of its ``coded``.
        sample: ``numeric``, ``categorical``, ``labels`` and maybe ``weight`` and ``group`` of shuffled rows.
        train_rows: Rows of the whole train split.
    """
    coded = preprocessor.coded
    if not coded:
        return ()
    categories: list[Group] = [(index,) for index, feature in enumerate(coded) if feature.kind == "category"]
    values: list[Group] = [(index,) for index, feature in enumerate(coded) if feature.kind == "value"]
    columns = [
        coded_column(codes, feature.cardinality) for codes, feature in zip(sample["categorical"].T, coded, strict=True)
    ]
    residuals = Residuals.from_rows(_smooth(preprocessor, sample, columns), sample)
    # Values first: crosses have to gain on top of them.
    values = _choose_values(residuals, columns, values, train_rows)
    crosses = _choose_crosses(residuals, columns) if len(coded) <= MAX_CROSSED else []
    return tuple(sorted([*categories, *values]) + crosses)


def halves(sample: Arrays) -> UInt16:
    """Return the half of each row of a sample, 0 or 1 ``(N,)``; rows of a group are in the same one."""
    if "group" not in sample:
        return (np.arange(len(sample["labels"])) % 2).astype(np.uint16)
    return (np.unique(sample["group"], return_inverse=True)[1] % 2).astype(np.uint16)


@dataclass(frozen=True)
class CodedColumn:
    """Codes of the sampled rows ``(N,)`` and how many codes there are."""

    codes: UInt16
    size: int


def coded_column(codes: npt.NDArray[np.int32], size: int) -> CodedColumn:
    """Return a coded feature whose rare codes count as unseen."""
    kept = min(size, MAX_ONE_HOT_CODES)
    return CodedColumn(np.where(codes < kept, codes, UNSEEN).astype(np.uint16), kept)


def joint_column(columns: Sequence[CodedColumn] | Mapping[int, CodedColumn], group: Group) -> CodedColumn:
    """Return the joint codes of some columns."""
    codes = columns[group[0]].codes
    size = columns[group[0]].size
    for index in group[1:]:
        codes = codes * np.uint16(columns[index].size) + columns[index].codes
        size = size * columns[index].size
    return CodedColumn(codes, size)


def _smooth(preprocessor: Preprocessor, sample: Arrays, columns: list[CodedColumn]) -> list[CodedColumn]:
    """Return what the network reads without one-hots: binned scores, missing ones in the middle, and categories."""
    smooth = [column for column, feature in zip(columns, preprocessor.coded, strict=True) if feature.kind == "category"]
    for stored_N in sample["numeric"].T if "numeric" in sample else ():
        scores_N = decode_scores(torch.from_numpy(np.ascontiguousarray(stored_N)[:, None])).numpy()[:, 0]
        bins_N = (scores_N + SCORE_LIMIT) * (BINS / (2 * SCORE_LIMIT))
        smooth.append(CodedColumn(bins_N.clip(0, BINS - 1).astype(np.uint16), BINS))
    return smooth


class Residuals:
    """Residuals of two additive models, one per half of the rows, each on its own half and on the other one."""

    def __init__(self, target_N: Float64, weight_N: Float64, half_N: UInt16) -> None:
        self.half_N = half_N
        prior = np.average(target_N, weights=weight_N)
        # Predictions without a model, by the model of the row's own half, and by the other half's.
        self.alone, self.own, self.unseen = (
            LogisticLikelihood(target_N, weight_N, np.log(prior / (1 - prior))) for _ in range(3)
        )

    @classmethod
    def from_rows(cls, smooth: list[CodedColumn], sample: Arrays) -> list["Residuals"]:
        """Fit the additive models of each label that has both classes."""
        fitted = []
        half_N = halves(sample)
        for target_N in sample["labels"].T:
            measured_N = (target_N != NOT_MEASURED).astype(np.float64)
            weight_N = measured_N * sample["weight"] if "weight" in sample else measured_N
            # Gains and shrinkage are in units of rows: the scale of the weights must not matter.
            weight_N = weight_N * (measured_N.sum() / max(weight_N.sum(), np.finfo(np.float64).tiny))
            counted_N = target_N[weight_N > 0]
            if counted_N.any() and not counted_N.all():
                fitted.append(cls(np.where(measured_N, target_N, 0).astype(np.float64), weight_N, half_N))
                # Boosting: one column after the other.
                for column in smooth * ROUNDS:
                    fitted[-1].absorb(column, LEARNING_RATE)
        return fitted

    def gain(self, column: CodedColumn) -> float:
        """Return the log-likelihood that the effects of one half save in the other, to second order."""
        indices_N = self._indices(column)
        gradient_2C, curvature_2C = _by_half(self.own, indices_N, column)
        effect_of_other_2C = _effects(gradient_2C, curvature_2C)[::-1]
        unseen_2C, _ = _by_half(self.unseen, indices_N, column)
        # Both models have about the same curvature in a half.
        return float((effect_of_other_2C * unseen_2C - 0.5 * effect_of_other_2C**2 * curvature_2C).sum())

    def main_gain(self, column: CodedColumn) -> float:
        """Return the log-likelihood that a column alone gains over the prior, to second order."""
        gradient_C, curvature_C = self.alone.sums(column.codes, column.size)
        return float((gradient_C * _effects(gradient_C, curvature_C)).sum() / 2)

    def absorb(self, column: CodedColumn, share: float = 1.0) -> None:
        """Add the effects of a column to the additive models."""
        indices_N = self._indices(column)
        effect_2C = share * _effects(*_by_half(self.own, indices_N, column))
        self.own.add(indices_N, effect_2C.ravel())
        self.unseen.add(indices_N, effect_2C[::-1].ravel())

    def _indices(self, column: CodedColumn) -> UInt16:
        """Return the codes of the rows, with those of the second half shifted behind those of the first."""
        assert 2 * column.size <= MAX_CODES
        return column.codes + np.uint16(column.size) * self.half_N


def _by_half(rows: LogisticLikelihood, indices_N: UInt16, column: CodedColumn) -> tuple[Float64, Float64]:
    """Return each half's gradient and curvature by the effect of each code, ``(2, C)`` each."""
    gradient, curvature = rows.sums(indices_N, 2 * column.size)
    return gradient.reshape(2, -1), curvature.reshape(2, -1)


def _effects(gradient: Float64, curvature: Float64) -> Float64:
    """Return the Newton step of each code, shrunk towards 0."""
    return gradient / (curvature + SHRINKAGE)


def worth(residuals: list[Residuals], column: CodedColumn) -> float:
    """Return what weights for the codes of a column gain on unseen rows beyond their cost, in nats."""
    return sum(residual.gain(column) for residual in residuals) - column.size / CODES_PER_NAT


def _choose_values(
    residuals: list[Residuals], columns: list[CodedColumn], candidates: list[Group], train_rows: int
) -> list[Group]:
    """Return the candidates that gain on top of better ones, or whose codes have plenty of rows."""
    gains = {group: worth(residuals, joint_column(columns, group)) for group in candidates}
    taken = [group for group in candidates if train_rows >= PLENTIFUL_ROWS * columns[group[0]].size]
    for group in sorted(candidates, key=gains.__getitem__, reverse=True):
        column = joint_column(columns, group)
        if worth(residuals, column) > MIN_VALUE_GAIN:
            taken.append(group)
            for residual in residuals:
                residual.absorb(column)
    return sorted({*taken})


def _choose_crosses(residuals: list[Residuals], columns: list[CodedColumn]) -> list[Group]:
    """Return the best cross, the best one after that, and so on; a taken cross may grow by a column."""

    def fits(group: Group) -> bool:
        # Larger crosses were memorized.
        return len(group) <= MAX_ORDER and math.prod(columns[index].size for index in group) <= MAX_ONE_HOT_CODES

    pairs: list[Group] = [pair for pair in itertools.combinations(range(len(columns)), 2) if fits(pair)]
    gains = {pair: worth(residuals, joint_column(columns, pair)) for pair in pairs}
    shortlist = sorted(pairs, key=gains.__getitem__, reverse=True)[:MAX_SHORTLIST]
    taken: list[Group] = []
    while shortlist and len(taken) < MAX_CROSSES:
        gains = {group: worth(residuals, joint_column(columns, group)) for group in shortlist}
        best = max(shortlist, key=gains.__getitem__)
        if gains[best] < MIN_CROSS_GAIN:
            break
        taken.append(best)
        for residual in residuals:
            residual.absorb(joint_column(columns, best))
        grown = {tuple(sorted({*best, index})) for index in range(len(columns)) if index not in best}
        shortlist = [group for group in {*shortlist, *grown} - {*taken} if fits(group)]
        # Sets have no order, and the first of equal gains is taken, so sort: the same data must give the same crosses.
        shortlist.sort()
    return taken
