"""Makes the best model of a run ready to save: blended or made of tables, calibrated, with metrics on validation."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import AdditiveTerms, calibrated, purified
from dkan_core.model.base import TabularModel
from dkan_core.model.calibration import Calibration
from dkan_core.model.model_folder import REFIT_ROWS, SCORES
from dkan_core.model.random_state import random_state
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring.prepared import ScoredSplit, score_split
from dkan_core.scoring.probabilities import to_probability
from dkan_core.training.additive_fit.additive_tables import TABLE_CHOICES, TableMaker
from dkan_core.training.state.refit_choices import ID_PENALTY, RefitChoices
from dkan_core.training.validation.blending import Blender
from dkan_core.training.validation.model_metrics import describe_best, score_distribution
from dkan_core.training.validation.scorer import BestParameters

Described = tuple[Calibration, dict[str, Any]]
"""A calibration, and the metrics for the model folder."""

FinishedModel = tuple[TabularModel, dict[str, Any]]
"""A model on the CPU, in eval mode, and the metrics for the model folder."""


@dataclass
class Finisher:
    """Finishes the best models of a run; what depends only on the train split is computed once.

    Args:
        open_train: Opens the train split.
        valid: The validation split.
        prepared: The manifest of both.
        config: Settings of the run.
        choices: Choices of the first training, if this is a refit. Default: choices are made on validation.
    """

    open_train: Callable[[], RowReader]
    valid: RowReader
    prepared: PreparedData
    config: ResolvedTrainConfig
    choices: RefitChoices | None = None

    def make_ready(self) -> None:
        """Fit what networks are blended with, if anything: this needs no network, and ``finish`` waits for it."""
        if self._blends:
            self._blender.make_ready()

    def finish(self, model: TabularModel, best: BestParameters) -> FinishedModel:
        """Return the finished copy of a model; the model itself, which scores later parameters, stays unchanged."""
        if isinstance(model, AdditiveFastKAN):
            return self._finish_additive(model, best)
        assert isinstance(model, TabularFastKAN) and model.config.blended is None, "there is no other model"
        with random_state():
            final = TabularFastKAN(model.config)
        final.load_state_dict(model.state_dict())
        scored = best.scored
        if self.choices is not None:
            weight = self.choices.metrics.get("blend")
            if weight is not None:
                final, scored = self._blender.blend_by(final.eval(), scored, weight)
            calibration, metrics = self._as_chosen(self.choices, scored, best)
        else:
            if self._blends:
                final, scored = self._blender.blend(final.eval(), scored)
            calibration, metrics = self._describe(scored, best)
            if final.config.blended is not None:
                metrics["blend"] = final.config.blended.weight
                for name, penalty in zip(self.prepared.labels, self._blender.chosen_id_penalties, strict=False):
                    metrics["labels"][name][ID_PENALTY] = penalty
        final.calibrate(*calibration)
        return final.eval(), metrics

    def _finish_additive(self, model: AdditiveFastKAN, best: BestParameters) -> FinishedModel:
        """Return the model made of tables."""
        cpu = AdditiveFastKAN(model.config)
        cpu.load_state_dict(model.state_dict())
        if self.choices is not None:
            found = {name: self.choices.metrics.get(name) for name in TABLE_CHOICES}
            terms = purified(self._tables.tables_by(cpu, found))
            calibration, metrics = self._as_chosen(self.choices, self._scored(terms), best)
        else:
            learned, choice = self._tables.tables(cpu)
            terms = purified(learned)
            calibration, metrics = self._describe(self._scored(terms), best)
            metrics |= choice
        scale_L, shift_L = calibration
        return calibrated(terms, scale_L.astype(np.float64), shift_L.astype(np.float64)).to_model(), metrics

    def _scored(self, terms: AdditiveTerms) -> ScoredSplit:
        return score_split(terms.to_model(), self.valid, torch.device("cpu"))

    def _describe(self, scored: ScoredSplit, best: BestParameters) -> Described:
        epoch, step = best.figures.epoch, best.figures.step
        return describe_best(scored, self.prepared.labels, self.config, epoch=epoch, step=step)

    def _as_chosen(self, choices: RefitChoices, scored: ScoredSplit, best: BestParameters) -> Described:
        """Return the choices and metrics of the first training, with the score distributions of the second model."""
        scale_L, shift_L = choices.calibration
        probabilities_NL = to_probability(scored.log_odds_NL * scale_L + shift_L)
        labels = zip(choices.metrics["labels"].items(), probabilities_NL.T, strict=True)
        found = {name: {**facts, SCORES: score_distribution(scores_N)} for (name, facts), scores_N in labels}
        extent = {REFIT_ROWS: self.prepared.splits["train"].rows, "refit_epochs": best.figures.epoch}
        return choices.calibration, {**choices.metrics, **extent, "labels": found}

    @property
    def _blends(self) -> bool:
        return self.config.blend and self.config.model == "auto"

    @functools.cached_property
    def _tables(self) -> TableMaker:
        return TableMaker(self.open_train(), self.valid, self.config)

    @functools.cached_property
    def _blender(self) -> Blender:
        chosen = None if self.choices is None else self.choices.id_penalties
        return Blender(self.open_train, self.valid, self.prepared, self.config, chosen)
