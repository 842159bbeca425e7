"""The tables of an additive model fitted again by penalized likelihood, where the train split is small enough for that.

Stochastic gradients come close to the best tables, and stop where validation says so, for all terms at once. On few
rows that leaves strong terms too flat and weak ones noisy, while a penalized fit is exact and takes seconds.

Shape suffixes: N rows, T terms, V rows of the table, M members, L labels.
"""

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits

from dkan_core.config import TrainConfig
from dkan_core.data.hashing import salted
from dkan_core.data.loading.loader import RowReader, all_batches
from dkan_core.data.loading.order import dropout_keys
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import FeatureCuts, Layout
from dkan_core.model.additive_terms import AdditiveTerms, purified
from dkan_core.model.architecture import additive_layout, additive_shape
from dkan_core.model.dropout import keep_factors
from dkan_core.training.additive_fit.id_effects import IdEffects
from dkan_core.training.additive_fit.penalized_fit import PenalizedFit, penalized_terms
from dkan_core.training.additive_fit.penalties import PairPenalty
from dkan_core.training.likelihood import target_of
from dkan_core.training.setup.additive_architecture import quantile_cuts
from dkan_core.training.setup.feature_crosses import Group
from dkan_core.utils.arrays import Float64, UInt16
from dkan_core.utils.messages import counted
from dkan_core.utils.torch_resources import torch_threads

logger = logging.getLogger(__name__)

BATCH_ROWS = 65_536
# Bins of a column in a pair if each of them has other values; other columns keep the bins of the search for pairs. The
# second number is for columns of the sharpest pairs.
FINE_BINS, FINEST_BINS = 64, 128
# Sharpest pairs times labels: each takes up to four seconds and 140 MB. Fewer rows show nothing so fine.
MAX_SHARPEST, MIN_SHARPEST_ROWS = 4, 2_000
# Passes over the terms for each member, from the tables of all rows on.
MEMBER_ROUNDS = 4
# Least effect of a pair on a row's log-odds, root mean square; with ``pairs="auto"``, weaker pairs are left out.
MIN_PAIR_EFFECT = 0.02


@dataclass(frozen=True, kw_only=True)
class _Rows:
    codes_TN: list[UInt16]
    """Codes of each term of a layout, or of its single features alone."""

    labels_NL: npt.NDArray[np.uint8]
    weight_N: Float64
    kept_MN: npt.NDArray[np.bool_]
    """Whether a member sees a row."""

    def target(self, label: int) -> tuple[npt.NDArray[np.bool_], Float64]:
        """Return which rows are positive, and each row's weight."""
        return target_of(self.labels_NL[:, label], self.weight_N)

    def with_each_code(self, layout: Layout) -> Float64:
        """Return how many rows have each code, by weight."""
        parts = zip(layout.terms, self.codes_TN, strict=True)
        counts = [np.bincount(codes_N, self.weight_N, term.size) for term, codes_N in parts]
        return np.concatenate([np.empty(0), *counts])


def fitted_terms(
    model: AdditiveFastKAN, reader: RowReader, config: TrainConfig, ids: Sequence[IdEffects] = ()
) -> AdditiveTerms:
    """Return the terms of a penalized fit: purified, not calibrated. What the model has learned does not matter.

    The members' mean is the fit to all rows; they differ as the fits to each member's own rows do. With monotone terms,
    which every member must have, the mean is that of the members' fits. The weight of positives is added to the
    intercept: positives that count as more rows than there are would be overfitted.

    Args:
        model: The result has its terms, members and labels. If no member leaves out rows, each is the fit to all rows.
        reader: The train split.
        config: Settings of the run.
        ids: Effects of ids of lists alone, for each label, if they have a term: it is fitted with the others.
    """
    singles = _read(model, reader, config.seed)
    # The number of threads of linear algebra changes the last bits.
    with torch_threads(1), threadpool_limits(1, user_api="blas"):
        terms, sharpest = _fit(model, singles, config, ids)
        if sharpest:
            logger.info(
                "%s with sharp effects: all terms are fitted again, with finer bins", counted(len(sharpest), "pair")
            )
            terms, _ = _fit(model, singles, config, ids, sharpest)
        terms = purified(terms)
    return without_idle_pairs(terms) if config.pairs == "auto" else terms


def _fit(
    model: AdditiveFastKAN,
    singles: _Rows,
    config: TrainConfig,
    ids: Sequence[IdEffects],
    sharpest: Collection[Group] = (),
) -> tuple[AdditiveTerms, list[Group]]:
    """Return the terms of one fit, and the features of the strongest pairs that another one is to give the most knots.

    If there are such pairs, the members are left out.

    Args:
        model: Has the terms; its bins are made finer.
        singles: Have codes of single features alone.
        config: Settings of the run.
        ids: As for ``fitted_terms``.
        sharpest: Features of the pairs that have the most bins and knots.
    """
    fine = _with_fine_bins(model, singles.codes_TN, {feature for pair in sharpest for feature in pair})
    rows = replace(singles, codes_TN=[*singles.codes_TN, *_pair_codes(fine, singles.codes_TN)])
    labels = len(model.config.labels)
    table_VML, intercept_L = np.zeros((fine.layout.size, model.config.members, labels)), np.zeros(labels)
    effects: dict[Group, float] = {}
    of_ids: list[Float64] = []
    limit = 0 if sharpest or len(rows.weight_N) < MIN_SHARPEST_ROWS else MAX_SHARPEST // labels
    for label in range(labels):
        terms = penalized_terms(fine.layout, additive_shape(fine.config), fine.signs, rows.codes_TN, sharpest)
        target_N, weight_N = rows.target(label)
        everywhere = PenalizedFit(terms, target_N, weight_N, ids[label] if ids else None)
        everywhere.fit()
        of_ids += [everywhere.ids.table_V] if everywhere.ids else []
        for each in terms:
            if isinstance(each.penalty, PairPenalty) and each.penalty.is_sharpest:
                effect = float(everywhere.table_V[each.term.rows][each.codes_N].std())
                effects[each.term.features] = max(effect, effects.get(each.term.features, 0.0))
        has_members = fine.bags.p and not (effects and limit)
        members = [_fit_member(everywhere, weight_N * kept_N) for kept_N in rows.kept_MN] if has_members else []
        table_VML[:, :, label] = _around(everywhere, members) if members else everywhere.table_V[:, None]
        intercept_L[label] = everywhere.intercept + math.log(config.pos_weight)
    weight_V = rows.with_each_code(fine.layout)
    found = AdditiveTerms(
        config=fine.config,
        intercept_L=intercept_L,
        table_VML=table_VML,
        weight_V=weight_V,
        ids_VL=np.stack(of_ids, axis=1) if of_ids else None,
    )
    return found, sorted(effects, key=lambda pair: -effects[pair])[:limit]


def _fit_member(everywhere: PenalizedFit, weight_N: Float64) -> PenalizedFit:
    """Return the fit to a member's rows, started at the tables of all rows; other rows have weight 0."""
    member = PenalizedFit(everywhere.terms, everywhere.rows.target_N, weight_N)
    member.start_at(everywhere)
    member.refine(MEMBER_ROUNDS)
    return member


def _with_fine_bins(model: AdditiveFastKAN, codes_TN: Sequence[UInt16], finest: Collection[int]) -> AdditiveFastKAN:
    """Return an empty model of the form "tables" whose pairs have fine bins of continuous numbers.

    Args:
        model: A model of the same terms.
        codes_TN: Each row's code of each term of a single feature.
        finest: Features with the most bins.
    """
    shape = additive_shape(model.config)
    cuts = {each.feature: each.cuts for each in shape.binned}
    for term, codes_N in zip(model.layout.curved, codes_TN, strict=False):
        feature = term.features[0]
        count_C = np.bincount(codes_N, minlength=term.size)
        fine = quantile_cuts(count_C, FINE_BINS)
        if feature in cuts and len(fine) == FINE_BINS:
            cuts[feature] = quantile_cuts(count_C, FINEST_BINS) if feature in finest else fine
    binned = tuple(FeatureCuts(feature=feature, cuts=each) for feature, each in cuts.items())
    refined = shape.as_tables().model_copy(update={"binned": binned})
    return AdditiveFastKAN(model.config.model_copy(update={"additive": refined}))


def _around(everywhere: PenalizedFit, members: Sequence[PenalizedFit]) -> Float64:
    """Return the members' tables ``(V, M)``, shifted to the fit to all rows, unless all must be monotone."""
    member_VM = np.stack([each.table_V for each in members], axis=1)
    shift_V = everywhere.table_V - member_VM.mean(axis=1)
    for each in everywhere.terms:
        if each.sign:
            shift_V[each.term.rows] = 0
    shifted_VM: Float64 = member_VM + shift_V[:, None]
    return shifted_VM


def without_idle_pairs(terms: AdditiveTerms) -> AdditiveTerms:
    """Return purified terms without the pairs that move no label's log-odds by ``MIN_PAIR_EFFECT``."""
    layout, shape = terms.layout, additive_shape(terms.config)
    kept = []
    for pair in layout.pairs:
        weight_C = terms.weight_V[pair.rows]
        square_L = weight_C @ terms.mean_VL[pair.rows] ** 2 / max(weight_C.sum(), np.finfo(np.float64).tiny)
        kept.append(bool(np.sqrt(square_L).max() >= MIN_PAIR_EFFECT))
    if all(kept):
        return terms
    pairs = tuple(pair for pair, keeps in zip(shape.pairs, kept, strict=True) if keeps)
    used = {feature for pair in pairs for feature in pair}
    changed = shape.model_copy(
        update={"pairs": pairs, "binned": tuple(each for each in shape.binned if each.feature in used)}
    )
    logger.info("%d of %d pairs are kept: the others contribute next to nothing", len(pairs), len(kept))
    chosen = [term.rows for term in layout.mains]
    chosen += [pair.rows for pair, keeps in zip(layout.pairs, kept, strict=True) if keeps]
    rows = np.concatenate([np.r_[each] for each in chosen])
    config = terms.config.model_copy(update={"additive": changed})
    assert additive_layout(config).size == len(rows), "the terms that are left, in their order"
    return replace(terms, config=config, table_VML=terms.table_VML[rows], weight_V=terms.weight_V[rows])


def _read(model: AdditiveFastKAN, reader: RowReader, seed: int) -> _Rows:
    """Return all rows of a split, with the codes of the terms of single features."""
    mains = model.layout.mains
    slots = [model.index_features.index(term.features) for term in mains]
    firsts_T = torch.tensor([term.first for term in mains], dtype=torch.int32)
    codes_TN = np.empty((len(mains), reader.rows), np.uint16)
    labels, weights, start = [], [], 0
    for batch in all_batches(reader, BATCH_ROWS):
        stop = start + len(batch["labels"])
        if mains:
            stored = {name: torch.from_numpy(batch[name]) for name in ("numeric", "categorical") if name in batch}
            indices_BT = model.main_indices(stored.get("numeric"), stored.get("categorical"))[:, slots]
            codes_TN[:, start:stop] = (indices_BT - firsts_T).T.numpy()
        labels.append(batch["labels"])
        weights.append(batch.get("weight", np.ones(stop - start, np.float32)).astype(np.float64))
        start = stop
    keys_N = torch.from_numpy(dropout_keys(salted(seed, "members"), 0, reader.rows))
    kept_NM = keep_factors(keys_N, model.bags.unit_keys, model.bags.p, torch.float32).numpy() > 0
    return _Rows(
        codes_TN=[*codes_TN],
        labels_NL=np.concatenate(labels),
        weight_N=np.concatenate(weights),
        kept_MN=np.ascontiguousarray(kept_NM.T),
    )


def _pair_codes(model: AdditiveFastKAN, codes_TN: Sequence[UInt16]) -> Iterator[UInt16]:
    """Yield the codes of each pair, given those of the terms of single features."""
    bins = model.bins.numpy().astype(np.uint16)
    paired = {feature for pair in model.layout.pairs for feature in pair.features}
    bins_of = {
        term.features[0]: bins[term.rows][codes_N]
        for term, codes_N in zip(model.layout.mains, codes_TN, strict=True)
        if term.features[0] in paired
    }
    for pair in model.layout.pairs:
        first, second = pair.features
        yield bins_of[first] * np.uint16(pair.shape[1]) + bins_of[second]
