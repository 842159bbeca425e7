"""What the ids of a row's lists add to its log-odds: a number for each code, by maximum penalized likelihood.

Newton steps of all codes at once solve their equations by conjugate gradients (Komarek and Moore 2005, "Making logistic
regression a core data mining tool with TR-IRLS"), which need only products with the sparse matrix of the rows' codes.
The penalty is the sum of the squared numbers. Its weight falls step by step, each fit starting where the previous one
ended, until the log loss on validation rises. The update of Fellner and Schall, which other terms use, was too
cautious: most ids have so few rows that the likelihood is no parabola.

Shape suffixes: N rows, V codes (the first one stands for none), L labels.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dkan_core.data.encoding.sparse import EMPTY
from dkan_core.data.loading.loader import RowReader, all_batches
from dkan_core.evaluation.metrics import mean_log_loss
from dkan_core.training.likelihood import LEAST_CURVATURE, LogisticLikelihood, damped, target_of
from dkan_core.utils.arrays import Float64

# In a batch, every row has room for as many codes as the longest one.
BATCH_ROWS = 8_192
# Weights of the squared numbers. A code is shrunk halfway to 0 if the information of its rows equals the weight.
PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
# Newton steps for each of them. The equations need not be solved exactly, as the next step corrects what is left.
STEPS, TOLERANCE, MAX_ITERATIONS = 2, 0.05, 50

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class IdEffects:
    """One label's numbers, shrunk by a penalty.

    Args:
        codes_NV: 1 where a row has a code, as a sparse matrix of float64.
        penalty: Weight of their squares.
    """

    codes_NV: Any
    penalty: float = PENALTIES[0]
    table_V: Float64 = field(init=False)
    """The number of each code; 0 for codes that no row has."""

    def __post_init__(self) -> None:
        self.table_V = np.zeros(self.codes_NV.shape[1])

    def log_odds(self) -> Float64:
        """Return the sum of the numbers of each row's codes, ``(N,)``."""
        added_N: Float64 = self.codes_NV @ self.table_V
        return added_N

    def update(self, rows: LogisticLikelihood) -> float:
        """Take a Newton step of all codes and of the intercept, and add it to the log-odds of the rows.

        Returns:
            The intercept's part. It is not penalized; otherwise, codes that most rows have would take its place.
        """
        gradient_N, curvature_N = rows.by_row()
        share_N = curvature_N / max(curvature_N.sum(), LEAST_CURVATURE)
        gradient_V = self.codes_NV.T @ (gradient_N - gradient_N.sum() * share_N) - self.penalty * self.table_V
        diagonal_V = self.codes_NV.T @ curvature_N + self.penalty

        def times_curvature(step_V: Float64) -> Float64:
            step_N = self.codes_NV @ step_V
            curved_V: Float64 = self.codes_NV.T @ (curvature_N * (step_N - share_N @ step_N))
            return curved_V + self.penalty * step_V

        step_V = _solved(times_curvature, gradient_V, diagonal_V)
        step_N = self.codes_NV @ step_V
        shift = float(gradient_N.sum() / max(curvature_N.sum(), LEAST_CURVATURE) - share_N @ step_N)
        largest = max(float(np.abs(step_N + shift).max()), LEAST_CURVATURE)
        factor = float(damped(np.array([largest]))[0]) / largest
        self.table_V = self.table_V + factor * step_V
        rows.log_odds_N += factor * (step_N + shift)
        return factor * shift


def _solved(times: Callable[[Float64], Float64], target_V: Float64, diagonal_V: Float64) -> Float64:
    """Solve linear equations by conjugate gradients, scaled by the diagonal, up to a tolerance."""
    found_V, rest_V = np.zeros_like(target_V), target_V.copy()
    scaled_V = rest_V / diagonal_V
    direction_V, square = scaled_V, float(rest_V @ scaled_V)
    enough = TOLERANCE**2 * square
    for _ in range(MAX_ITERATIONS):
        if square <= enough:
            break
        turned_V = times(direction_V)
        length = square / float(direction_V @ turned_V)
        found_V += length * direction_V
        rest_V -= length * turned_V
        scaled_V = rest_V / diagonal_V
        before, square = square, float(rest_V @ scaled_V)
        direction_V = scaled_V + (square / before) * direction_V
    return found_V


def fitted_ids(
    train: RowReader, valid: RowReader, codes: int, penalties: Sequence[float] | None = None
) -> list[IdEffects]:
    """Return the effects of ids for each label, in a model of nothing but ids and an intercept.

    Args:
        train: Rows to fit.
        valid: Rows on which the weights of the penalties are chosen.
        codes: V.
        penalties: The weight for each label, where it is known.
    """
    rows, judges = _read(train, codes), _read(valid, codes)
    # The number of threads of linear algebra changes the last bits.
    with threadpool_limits(1, user_api="blas"):
        return [
            _fitted(rows, judges, label, penalties[label] if penalties else None)
            for label in range(rows.labels_NL.shape[1])
        ]


@dataclass(frozen=True, kw_only=True)
class _IdRows:
    codes_NV: Any
    labels_NL: Any
    weight_N: Float64


def _fitted(rows: _IdRows, judges: _IdRows, label: int, penalty: float | None) -> IdEffects:
    """Return one label's numbers under the given penalty, or under the one that predicts the judges best."""
    effects = IdEffects(codes_NV=rows.codes_NV)
    likelihood = LogisticLikelihood(*target_of(rows.labels_NL[:, label], rows.weight_N))
    intercept, least, best = likelihood.prior(), np.inf, (effects.penalty, effects.table_V)
    for weight in (each for each in PENALTIES if penalty is None or each >= penalty):
        effects.penalty = weight
        for _ in range(STEPS):
            intercept += effects.update(likelihood)
        if penalty is None:
            odds_N1 = (judges.codes_NV @ effects.table_V + intercept)[:, None]
            loss = mean_log_loss(judges.labels_NL[:, [label]], odds_N1, judges.weight_N)
            # The loss of no rows is NaN.
            if not loss < least:
                break
            least = loss
        best = weight, effects.table_V
    effects.penalty, effects.table_V = best
    logger.info("the effects of IDs are fitted with a penalty of weight %g", effects.penalty)
    return effects


def _read(reader: RowReader, codes: int) -> _IdRows:
    from scipy.sparse import csr_array

    counts, found, labels, weights = [np.zeros(1, np.int64)], [], [], []
    for batch in all_batches(reader, BATCH_ROWS):
        has_code_NS = batch["sparse"] != EMPTY
        counts.append(has_code_NS.sum(axis=1))
        found.append(batch["sparse"][has_code_NS])
        labels.append(batch["labels"])
        weights.append(batch.get("weight", np.ones(len(has_code_NS), np.float32)).astype(np.float64))
    indices, offsets = np.concatenate(found), np.cumsum(np.concatenate(counts))
    matrix = csr_array((np.ones(len(indices)), indices, offsets), shape=(reader.rows, codes))
    return _IdRows(codes_NV=matrix, labels_NL=np.concatenate(labels), weight_N=np.concatenate(weights))
