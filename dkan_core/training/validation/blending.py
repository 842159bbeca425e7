"""Blending a trained network with an additive model of the same rows.

The additive model is fitted by penalized likelihood, once in a run; see ``model.blended``.
"""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader, SampledRows, all_batches
from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import AdditiveShape, Blend
from dkan_core.model.architecture import ModelConfig, additive_shape, blended_config
from dkan_core.model.blended import BlendedFastKAN, weighted_mean
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring.prepared import ScoredSplit, score_batches
from dkan_core.scoring.probabilities import SCORING_ROWS
from dkan_core.training.additive_fit.fitted_tables import fitted_terms
from dkan_core.training.additive_fit.id_effects import fitted_ids
from dkan_core.training.setup.additive_architecture import choose_additive
from dkan_core.training.setup.additive_fit_limits import MAX_FITTED_PAIRS, TERMS_PER_ID, blend_rows
from dkan_core.training.setup.feature_crosses import search_sample

# Few weights to choose from by validation AP: more would fit its noise.
WEIGHTS = (0.2, 0.4, 0.6, 0.8)
# With few positives, validation AP hardly tells these weights apart. So any weight but the first number below, and also
# the 0 of a network that scores alone, has to be better by the second number times the square of its distance from the
# first, divided by the validation rows of the rarer class.
USUAL_WEIGHT, DISTANCE_COST = 0.6, 5.0
# A network scores alone if it is better on each of so many parts of the validation rows, as with many rows whose
# columns interact beyond sums of pairs. Without a real difference, that happens once in a thousand times.
ALONE_PARTS = 10
# It also scores alone if it is better by this share of its AP, or of 1 minus its AP if that is less, in addition to the
# cost of its weight of 0. With few rows, blends are nearly always better on unseen rows: this is for failed fits of the
# additive model.
ALONE_MARGIN = 0.1
# Rows to choose pairs on: half of those for the network's crosses, at half the time.
SEARCHED_ROWS = 100_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Partner:
    """The additive model that a network may be blended with, and its scores on validation."""

    model: AdditiveFastKAN
    scored: ScoredSplit
    id_penalties: list[float]
    """The penalty on the numbers of ids, for each label; none if ids have no term."""


@dataclass
class Blender:
    """Blends the networks of a run.

    Args:
        open_train: Opens the train split.
        valid: The validation split.
        prepared: The manifest of both.
        config: Settings of the run.
        id_penalties: The penalties on the numbers of ids that an earlier training has chosen; none if ids have no term.
            Default: they are chosen on validation.
    """

    open_train: Callable[[], RowReader]
    valid: RowReader
    prepared: PreparedData
    config: ResolvedTrainConfig
    id_penalties: Sequence[float] | None = None

    def make_ready(self) -> None:
        """Fit the additive model."""
        _ = self._partner

    @property
    def chosen_id_penalties(self) -> list[float]:
        """The penalty on the numbers of ids in the additive model, for each label; none if ids have no term."""
        return [] if self._partner is None else self._partner.id_penalties

    def blend_by(
        self, network: TabularFastKAN, scored: ScoredSplit, weight: float
    ) -> tuple[TabularFastKAN, ScoredSplit]:
        """Return a blend with this weight of the additive model, and its scores.

        Without an additive model, return the network alone.

        Args:
            network: In eval mode, on the CPU, not calibrated.
            scored: Its log-odds on validation.
            weight: Weight of the additive model.
        """
        partner = self._partner
        if partner is None:
            return network, scored
        config = partner.model.config
        blend = Blend(
            weight=weight,
            coded=tuple(index for (index,) in config.one_hot_groups),
            additive=additive_shape(config),
            ids=bool(config.sparse),
        )
        return BlendedFastKAN.of(network, partner.model, blend), _weighted(scored, partner.scored, weight)

    def blend(self, network: TabularFastKAN, scored: ScoredSplit) -> tuple[TabularFastKAN, ScoredSplit]:
        """Return the blend with the best validation AP, or the network alone if it is better, and the scores.

        With few validation rows of the rarer class, the usual weight is taken unless another one is far better.

        Args:
            network: In eval mode, on the CPU, not calibrated.
            scored: Its log-odds on validation.
        """
        partner = self._partner
        if partner is None:
            return network, scored
        found = {weight: _weighted(scored, partner.scored, weight) for weight in WEIGHTS}
        values = {weight: _average_precision(each) for weight, each in found.items()}
        rows, alone = rarer_rows(scored.labels_NL), _average_precision(scored)
        best = chosen_weight(values, rows)
        far_better = is_far_better(alone, values[best], best, rows)
        # Blends are nearly always better on unseen rows, but not for data that need a second hidden layer.
        better_and_deep = len(network.config.hidden) > 1 and values[best] < alone
        if far_better or better_and_deep or is_better_on_each_part(scored, found[best]):
            return network, scored
        logger.info(
            "blended with %g of the additive model: validation AP %.4f instead of %.4f", best, values[best], alone
        )
        return self.blend_by(network, scored, best)

    @functools.cached_property
    def _partner(self) -> _Partner | None:
        """The additive model; None if it would have no terms, or if there are too many columns for the rows."""
        train = self.open_train()
        rows, codes = self._extent(train.rows)
        if not rows:
            return None
        sample = SampledRows(train, rows)
        ids = fitted_ids(sample, SampledRows(self.valid, rows), codes, self.id_penalties) if codes else []
        terms = fitted_terms(self._untrained(train, ids=bool(ids)), sample, self.config, ids)
        also = " and of IDs" if ids else ""
        logger.info("an additive model of %d terms%s is fitted to %d rows", len(terms.layout.terms), also, rows)
        model = terms.to_model()
        batches = all_batches(self.valid, SCORING_ROWS)
        read = ({name: array for name, array in batch.items() if ids or name != "sparse"} for batch in batches)
        scored = score_batches(model, read, torch.device("cpu"))
        return _Partner(model=model, scored=scored, id_penalties=[each.penalty for each in ids])

    def _extent(self, train_rows: int) -> tuple[int, int]:
        """Return how many rows the additive model is fitted to, and for how many codes of ids it has numbers."""
        encoding, labels = self.prepared.preprocessor, len(self.prepared.labels)
        terms = self._columns + MAX_FITTED_PAIRS if self._columns else 0
        if encoding.sparse and self.id_penalties != []:
            ones = max(1, math.ceil(sum(feature.ones for feature in encoding.sparse)))
            if rows := blend_rows(train_rows, terms + TERMS_PER_ID * ones, labels):
                return rows, 1 + sum(feature.size for feature in encoding.sparse)
        # Too many ids for the additive model: only the network reads them.
        return blend_rows(train_rows, terms, labels) if terms else 0, 0

    @property
    def _columns(self) -> int:
        encoding = self.prepared.preprocessor
        return len(encoding.numeric) + len(encoding.coded)

    def _untrained(self, train: RowReader, *, ids: bool) -> AdditiveFastKAN:
        """Return an additive model of all columns and the best pairs."""
        groups: tuple[tuple[int, ...], ...] = ()
        shape = AdditiveShape(form="tables")
        if self._columns:
            searched = SampledRows(train, SEARCHED_ROWS)
            sample = search_sample(searched, columns=self._columns, labels=len(self.prepared.labels))
            groups, shape = choose_additive(self.prepared.preprocessor, sample, self.config, MAX_FITTED_PAIRS)
        coded, tables = tuple(index for (index,) in groups), shape.as_tables()
        config = ModelConfig.for_data(self.prepared, self.config)
        return AdditiveFastKAN(blended_config(config, coded=coded, additive=tables, ids=ids))


def _weighted(of_network: ScoredSplit, of_partner: ScoredSplit, weight: float) -> ScoredSplit:
    network_NL, partner_NL = (torch.from_numpy(each.log_odds_NL) for each in (of_network, of_partner))
    return replace(of_network, log_odds_NL=weighted_mean(network_NL, partner_NL, weight).numpy())


def chosen_weight(values: Mapping[float, float], rows: int) -> float:
    """Return the weight with the best validation AP, or the usual one if rows are few and AP is nearly as good."""
    return max(values, key=lambda weight: values[weight] - weight_cost(weight, rows))


def weight_cost(weight: float, rows: int) -> float:
    """Return by how much AP must exceed that of the usual weight for another weight to be taken.

    >>> [round(weight_cost(weight, rows=50), 4) for weight in (0, 0.2, 0.6)]
    [0.036, 0.016, 0.0]
    """
    return DISTANCE_COST * (weight - USUAL_WEIGHT) ** 2 / rows


def is_far_better(alone: float, blended: float, weight: float, rows: int) -> bool:
    """Return whether a network alone is better than its blend by more than chance can explain with so few rows.

    Args:
        alone: Validation AP of the network alone.
        blended: Validation AP of its blend.
        weight: Weight of the additive model in the blend.
        rows: Validation rows of the rarer class.

    >>> is_far_better(0.97, 0.96, 0.6, rows=10_000), is_far_better(0.97, 0.96, 0.6, rows=20)
    (True, False)
    >>> is_far_better(0.97, 0.6, 0.6, rows=20)
    True
    """
    cost = weight_cost(0, rows) - weight_cost(weight, rows)
    return blended < alone - cost - ALONE_MARGIN * min(alone, 1 - alone)


def rarer_rows(labels_NL: npt.NDArray[np.uint8]) -> int:
    """Return the measured rows of each label's rarer class, the sum over labels; at least 1.

    >>> rarer_rows(np.array([[0, 1], [0, 1], [1, 255]], np.uint8)), rarer_rows(np.zeros((5, 1), np.uint8))
    (1, 1)
    """
    return max(1, int(sum(np.bincount(label_N, minlength=2)[:2].min() for label_N in labels_NL.T)))


def is_better_on_each_part(one: ScoredSplit, other: ScoredSplit) -> bool:
    """Return whether the AP of one is higher on every part of the rows; a part has every ``ALONE_PARTS``-th of them."""
    parts = (slice(first, None, ALONE_PARTS) for first in range(ALONE_PARTS))
    return all(_average_precision(_part(one, rows)) > _average_precision(_part(other, rows)) for rows in parts)


def _part(scored: ScoredSplit, rows: slice) -> ScoredSplit:
    weight_N = None if scored.weight_N is None else scored.weight_N[rows]
    return ScoredSplit(scored.labels_NL[rows], scored.log_odds_NL[rows], weight_N)


def _average_precision(scored: ScoredSplit) -> float:
    value = macro_average_precision(scored.labels_NL, scored.log_odds_NL, scored.weight_N)
    return value if np.isfinite(value) else 0.0
