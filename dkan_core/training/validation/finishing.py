"""The best model of a run as it is saved: blended or made of tables, calibrated, with its metrics on validation."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.validation.additive_tables import TableMaker
from dkan_core.training.validation.blending import Blender
from dkan_core.training.validation.early_stopping import describe_best
from dkan_core.training.validation.scorer import Best

FinishedModel = tuple[TabularModel, ModelConfig, dict[str, Any]]
"""A model on the CPU, in eval mode; its architecture; and what a model folder says about it."""


@dataclass
class Finisher:
    """Makes what is saved of the best models of a run; what that takes of the train split is computed once.

    Args:
        open_train: Opens the train split.
        valid: The validation split.
        prepared: The manifest of both.
        config: Settings of the run.
        from_scratch: Whether training started from an untrained model.
    """

    open_train: Callable[[], RowReader]
    valid: RowReader
    prepared: PreparedData
    config: ResolvedTrainConfig
    from_scratch: bool

    def make_ready(self) -> None:
        """Fit what networks are blended with, if anything: it needs no model, and the first ``finish`` waits for it."""
        if self._blends:
            self._blender.make_ready()

    def finish(self, model: TabularModel, best: Best) -> FinishedModel:
        """Return the finished copy of a model; the model itself, which others are scored with, stays as it is.

        Args:
            model: The model, with the best parameters.
            best: How it scores, and how far the run was.
        """
        names = self.prepared.labels
        if isinstance(model, AdditiveFastKAN):
            return self._tables.finish(model, names, self.config, best.facts)
        assert isinstance(model, TabularFastKAN) and model.config.blended is None, "there is no other model"
        with torch.random.fork_rng(devices=[]):
            final, scored = TabularFastKAN(model.config), best.scored
        final.load_state_dict(model.state_dict())
        if self._blends:
            final, scored = self._blender.blend(final.eval(), scored)
        calibration, metrics = describe_best(
            scored, names, self.config, epoch=best.facts["epoch"], step=best.facts["step"]
        )
        final.calibrate(*calibration)
        if final.config.blended is not None:
            metrics["blend"] = final.config.blended.weight
        return final.eval(), final.config, metrics

    @property
    def _blends(self) -> bool:
        return self.config.blend and self.config.model == "auto"

    @functools.cached_property
    def _tables(self) -> TableMaker:
        return TableMaker(self.open_train(), self.valid, self.from_scratch)

    @functools.cached_property
    def _blender(self) -> Blender:
        return Blender(self.open_train, self.valid, self.prepared, self.config)
