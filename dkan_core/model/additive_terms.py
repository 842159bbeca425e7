"""The terms of an additive model as tables of float64: what reasons, curves and edits read and change.

The log-odds of a row are the intercept and one number of each term: the curve is the model. Terms are *purified*
(Lengerich et al. 2020, arXiv:1911.04974): what a pair says of one of its features alone is part of that feature's
term, and the mean of each term over the training data is 0.

Shape suffixes: N rows, V rows of the table, M members, L labels, I and J bins of a pair's features.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from dkan_core.model.additive import AdditiveFastKAN, bins_of_rows
from dkan_core.model.additive_shape import Layout, Term
from dkan_core.model.architecture import ModelConfig, additive_layout, additive_shape
from dkan_core.utils.arrays import Float64


@dataclass(frozen=True, kw_only=True)
class AdditiveTerms:
    """What an additive model adds up, in calibrated log-odds."""

    config: ModelConfig
    """Of the form "tables"."""

    intercept_L: Float64
    table_VML: Float64
    """What each code adds, by member."""

    weight_V: Float64
    """Rows of the training data with each code."""

    ids_VL: Float64 | None = None
    """What each code of the sparse columns adds, where these have a term."""

    @cached_property
    def layout(self) -> Layout:
        """Where the terms lie in the table."""
        return additive_layout(self.config)

    @property
    def mean_VL(self) -> Float64:
        """What each code adds: the members' mean."""
        mean_VL: Float64 = self.table_VML.mean(axis=1)
        return mean_VL

    @property
    def spread_factor(self) -> float:
        """Factor from the members' standard deviation to the standard error of their mean.

        Each member leaves out a share p of the rows. Its estimate then differs from that of all rows by a variance
        that is p / (1 - p) of that estimate's own; and the mean of M members differs by one M-th of that.
        """
        left_out, members = self.config.dropout, self.table_VML.shape[1]
        return float(np.sqrt((1 - left_out) / left_out + 1 / members)) if left_out else 0.0

    def to_model(self) -> AdditiveFastKAN:
        """Return a model that scores by these terms, in eval mode."""
        model = AdditiveFastKAN(self.config)
        with torch.no_grad():
            model.table.copy_(torch.from_numpy(self.table_VML.reshape(model.table.shape)))
            model.row_weight.copy_(torch.from_numpy(self.weight_V))
            model.bias.copy_(torch.from_numpy(self.intercept_L))
            if model.ids is not None and self.ids_VL is not None:
                model.ids.weight.copy_(torch.from_numpy(self.ids_VL))
        return model.eval()


def terms_of(model: AdditiveFastKAN) -> AdditiveTerms:
    """Return the terms of a model of the form "tables"."""
    scale_L, shift_L = (part.double().cpu().numpy() for part in (model.calibration_scale, model.calibration_shift))
    table_VML = _by_member(model) * scale_L
    intercept_L = model.bias.detach().double().cpu().numpy() * scale_L + shift_L
    weight_V = model.row_weight.double().cpu().numpy()
    return AdditiveTerms(config=model.config, intercept_L=intercept_L, table_VML=table_VML, weight_V=weight_V)


def trained_terms(model: AdditiveFastKAN, weight_V: Float64) -> AdditiveTerms:
    """Return the terms of a model as they were trained: neither purified nor calibrated."""
    config = model.config.model_copy(update={"additive": additive_shape(model.config).as_tables()})
    intercept_L = model.bias.detach().double().cpu().numpy()
    return AdditiveTerms(config=config, intercept_L=intercept_L, table_VML=_by_member(model), weight_V=weight_V)


def _by_member(model: AdditiveFastKAN) -> Float64:
    table_VH: Float64 = model.tables().detach().double().cpu().numpy()
    return table_VH.reshape(len(table_VH), model.config.members, -1)


def purified(terms: AdditiveTerms) -> AdditiveTerms:
    """Return the same model with no main effect in a pair and with terms whose mean over the training data is 0."""
    layout, table_VML = terms.layout, terms.table_VML.copy()
    mains = {term.features[0]: term for term in layout.mains}
    bins = bins_of_rows(additive_shape(terms.config), layout)
    # Threads would wait for each other longer than such small matrices take.
    with threadpool_limits(1, user_api="blas"):
        for pair in layout.pairs:
            for feature, effect in zip(pair.features, _take_main_effects(pair, table_VML, terms.weight_V), strict=True):
                main = mains[feature]
                table_VML[main.rows] += effect[bins[main.rows]]
    return centered(replace(terms, table_VML=table_VML))


def centered(terms: AdditiveTerms) -> AdditiveTerms:
    """Return the same model with terms whose mean over the training data is 0: the intercept takes the means."""
    table_VML, intercept_L = terms.table_VML.copy(), terms.intercept_L.copy()
    for term in terms.layout.terms:
        mean_ML = _weighted_mean(table_VML[term.rows], terms.weight_V[term.rows])
        table_VML[term.rows] -= mean_ML
        intercept_L += mean_ML.mean(axis=0)
    return replace(terms, table_VML=table_VML, intercept_L=intercept_L)


def _take_main_effects(pair: Term, table_VML: Float64, weight_V: Float64) -> tuple[Float64, Float64]:
    """Take what depends on one feature alone out of a pair's rows; return it for each bin of both, ``(I, M, L)``.

    It is the sum of two functions, one of each feature, that is nearest to the pair by the weighted squares: without
    it, every row and every column of the pair has a weighted mean of 0.
    """
    rows, columns = pair.shape
    weight_IJ = weight_V[pair.rows].reshape(rows, columns)
    pair_IJX = table_VML[pair.rows].reshape(rows, columns, -1)
    sums = np.concatenate([(weight_IJ[:, :, None] * pair_IJX).sum(axis=axis) for axis in (1, 0)])
    normal = np.block(
        [[np.diag(weight_IJ.sum(axis=1)), weight_IJ], [weight_IJ.T, np.diag(weight_IJ.sum(axis=0))]],
    )
    # The least-norm solution: a constant could be in either function, and bins without rows stay unchanged.
    effects = np.linalg.lstsq(normal, sums, rcond=1e-12)[0]
    first_IX, second_JX = effects[:rows], effects[rows:]
    pair_IJX = pair_IJX - first_IX[:, None] - second_JX[None]
    table_VML[pair.rows] = pair_IJX.reshape(pair.size, *table_VML.shape[1:])
    shape = (-1, *table_VML.shape[1:])
    return first_IX.reshape(shape), second_JX.reshape(shape)


def _weighted_mean(values_RML: Float64, weight_R: Float64) -> Float64:
    total = weight_R.sum()
    return np.tensordot(weight_R, values_RML, axes=1) / total if total else np.zeros(values_RML.shape[1:])


def calibrated(terms: AdditiveTerms, scale_L: Float64, shift_L: Float64) -> AdditiveTerms:
    """Return terms whose sum is the log-odds times a scale, plus a shift."""
    intercept_L = terms.intercept_L * scale_L + shift_L
    return replace(terms, table_VML=terms.table_VML * scale_L, intercept_L=intercept_L)
