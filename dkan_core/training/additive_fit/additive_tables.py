"""The last step of training an additive model: from bases to tables that are smooth, purified and calibrated.

Shape suffixes: N rows, T terms, V rows of the table, C codes of a curve, M members, L labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dkan_core.config import TrainConfig
from dkan_core.data.loading.loader import RowReader, SampledRows, all_batches
from dkan_core.evaluation.metrics import mean_log_loss
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import AdditiveTerms, purified, trained_terms
from dkan_core.model.calibration import sigmoid
from dkan_core.scoring.prepared import score_split
from dkan_core.training.additive_fit.fitted_tables import fitted_terms
from dkan_core.training.additive_fit.roughness import pair_roughness_bands, second_difference_bands
from dkan_core.training.setup.additive_fit_limits import can_fit_tables
from dkan_core.utils.arrays import Float64

FITTED, SMOOTHED = "fitted", "smoothed"

TableChoice = dict[str, Any]
"""Which tables a model has, as its metrics say: ``tables``, and where they are smoothed ``curve_penalty`` and, with
pairs, ``pair_penalty``."""

TABLE_CHOICES = ("tables", "curve_penalty", "pair_penalty")

# Rows of a sample that tells how the training data are distributed: a share of one in a thousand is then known to 3%.
COUNTED_ROWS = 1_000_000
BATCH_ROWS = 65_536
# Rows of validation on which penalties are compared.
COMPARED_ROWS = 200_000
# Weights of a curve's squared second differences, in units of the information of one row: how much rougher a curve
# may be than a line. The first is none.
CURVE_PENALTIES = (0.0, 10.0, 100.0, 1_000.0, 10_000.0)
# The same of the squared differences between neighbouring cells of a pair: how far a pair may be from nothing.
PAIR_PENALTIES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)


def count_codes(model: AdditiveFastKAN, reader: RowReader) -> tuple[Float64, float]:
    """Return how many rows of the training data have each code, by weight ``(V,)``, and the mean weight of a row.

    Rows of weight 0 do not count.
    """
    count_V, rows = np.zeros(model.layout.size), 0
    for batch in all_batches(SampledRows(reader, COUNTED_ROWS), BATCH_ROWS):
        stored = {name: torch.from_numpy(batch[name]) for name in ("numeric", "categorical") if name in batch}
        indices_NT = model.indices(stored.get("numeric"), stored.get("categorical")).numpy()
        weight_N = batch.get("weight", np.ones(len(indices_NT), np.float32))
        weight_NT = np.broadcast_to(weight_N[:, None], indices_NT.shape)
        count_V += np.bincount(indices_NT.ravel(), weight_NT.ravel(), len(count_V))
        rows += int(np.count_nonzero(weight_N))
    # Every row has one code of each term.
    total = count_V.sum() / len(model.layout.terms)
    return count_V, total / rows if rows else 1.0


@dataclass
class TableMaker:
    """Makes the final model of trained ones; the training data are counted once.

    Args:
        train: The train split.
        valid: The validation split.
        config: Settings of the run; tables are fitted again only if training started from an untrained model.
    """

    train: RowReader
    valid: RowReader
    config: TrainConfig

    def __post_init__(self) -> None:
        self._counted: tuple[Float64, float] | None = None
        self._fitted: AdditiveTerms | None = None

    def tables(self, model: AdditiveFastKAN) -> tuple[AdditiveTerms, TableChoice]:
        """Return a trained model's terms, smooth, or those of a penalized fit, whichever are better on validation.

        They are neither purified nor calibrated. The fit is the same for all models of a run, and made once.
        """
        fitted = self._fitted_terms(model)
        # Purified first: a pair's effect of one feature alone belongs to that feature's curve, and must not be shrunk.
        terms, mean_weight = self._trained_terms(model)
        candidates = [smoothed(terms, penalty) for penalty in CURVE_PENALTIES]
        best = self._best(candidates)
        choice: TableChoice = {"tables": SMOOTHED, "curve_penalty": CURVE_PENALTIES[best]}
        terms = candidates[best]
        if terms.layout.pairs:
            candidates = [with_smooth_pairs(terms, penalty) for penalty in PAIR_PENALTIES]
            best = self._best(candidates)
            choice |= {"pair_penalty": PAIR_PENALTIES[best]}
            terms = candidates[best]
        if fitted is not None and self._best([terms, fitted]):
            return fitted, {"tables": FITTED}
        return _weighted(terms, mean_weight), choice

    def tables_by(self, model: AdditiveFastKAN, choice: TableChoice) -> AdditiveTerms:
        """Return the terms that an earlier choice asks for."""
        if choice["tables"] == FITTED:
            return fitted_terms(model, self.train, self.config)
        terms, mean_weight = self._trained_terms(model)
        smooth = with_smooth_pairs(smoothed(terms, choice["curve_penalty"]), choice.get("pair_penalty") or 0.0)
        return _weighted(smooth, mean_weight)

    def _trained_terms(self, model: AdditiveFastKAN) -> tuple[AdditiveTerms, float]:
        """Return what was learned, purified, with rows of a mean weight of 1, and their mean weight."""
        if self._counted is None:
            self._counted = count_codes(model, self.train)
        count_V, mean_weight = self._counted
        # Penalties count rows: the scale of the weights must not matter.
        return purified(trained_terms(model, count_V / mean_weight)), mean_weight

    def _fitted_terms(self, model: AdditiveFastKAN) -> AdditiveTerms | None:
        terms, labels = len(model.layout.terms), len(model.config.labels)
        may_fit = self.config.init_from is None and can_fit_tables(self.train.rows, terms, labels)
        if self._fitted is None and may_fit:
            self._fitted = fitted_terms(model, self.train, self.config)
        return self._fitted

    def _best(self, candidates: Sequence[AdditiveTerms]) -> int:
        """Return the index of the terms with the least log loss on validation."""
        few = SampledRows(self.valid, COMPARED_ROWS)
        scored = (score_split(each.to_model(), few, torch.device("cpu")) for each in candidates)
        # Without the shift by ``pos_weight``: on validation, positives count like other rows.
        prior = math.log(self.config.pos_weight)
        losses = [
            mean_log_loss(each.labels_NL, each.log_odds_NL.astype(np.float64) - prior, each.weight_N) for each in scored
        ]
        # ``argmin`` would choose a NaN.
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf)))


def _weighted(terms: AdditiveTerms, mean_weight: float) -> AdditiveTerms:
    return replace(terms, weight_V=terms.weight_V * mean_weight)


def smoothed(terms: AdditiveTerms, penalty: float) -> AdditiveTerms:
    """Return terms whose curves over scores are smoother.

    Each curve becomes the one with the least sum of squared differences from it, weighted by the information of the
    rows with each code, and of ``penalty`` times its squared second differences (Eilers 2003, doi:10.1021/ac034173t):
    the penalized likelihood, to second order around what was learned.

    Args:
        terms: What was learned.
        penalty: 0 changes nothing.
    """
    if not penalty:
        return terms
    table_VML = terms.table_VML.copy()
    monotone = dict(terms.config.additive.monotone) if terms.config.additive else {}
    for term in terms.layout.curved:
        if term.features[0] in monotone:
            continue
        codes = slice(term.first + 1, term.first + term.size)
        for label, information in enumerate(_information(terms)):
            weight_C = terms.weight_V[codes] * information
            bands = penalty * second_difference_bands(len(weight_C))
            table_VML[codes, :, label] = whittaker(table_VML[codes, :, label], weight_C, bands)
    return replace(terms, table_VML=table_VML)


def _information(terms: AdditiveTerms) -> Float64:
    """Return the information of a row about each label's log-odds at the intercept, ``(L,)``."""
    probability_L = sigmoid(terms.intercept_L)
    information_L: Float64 = probability_L * (1 - probability_L)
    return information_L


def with_smooth_pairs(terms: AdditiveTerms, penalty: float) -> AdditiveTerms:
    """Return terms whose pairs are smoother and smaller.

    As ``smoothed``, but with differences between neighbouring bins; codes of a category have no neighbours, and are
    shrunk towards zero.

    Args:
        terms: What was learned, purified.
        penalty: 0 changes nothing.
    """
    if not penalty:
        return terms
    table_VML = terms.table_VML.copy()
    curved = {term.features[0] for term in terms.layout.curved}
    for pair in terms.layout.pairs:
        ordered = [feature in curved for feature in pair.features]
        roughness = pair_roughness_bands(pair.shape, ordered)
        for label, information in enumerate(_information(terms)):
            weight_C = terms.weight_V[pair.rows] * information
            table_VML[pair.rows, :, label] = whittaker(table_VML[pair.rows, :, label], weight_C, penalty * roughness)
    return replace(terms, table_VML=table_VML)


def whittaker(values_CM: Float64, weight_C: Float64, bands: Float64) -> Float64:
    """Return the smooth values nearest to some, column by column; ``bands`` of the penalty's matrix are changed.

    >>> bands = 1e9 * second_difference_bands(4)
    >>> whittaker(np.array([[0.0], [1.0], [0.0], [1.0]]), np.ones(4), bands).round(3).ravel().tolist()
    [0.2, 0.4, 0.6, 0.8]
    """
    from scipy.linalg import solveh_banded

    # Too little to matter, except for codes and cells without rows.
    weight_C = weight_C + 1e-6
    bands[0] += weight_C
    smooth_CM: Float64 = solveh_banded(bands, weight_C[:, None] * values_CM, lower=True)
    return smooth_CM
