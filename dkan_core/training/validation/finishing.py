"""The best model of a run as it is saved: calibrated, an additive one as tables, with its metrics on validation."""

from collections.abc import Callable, Sequence
from typing import Any

from dkan_core.config import TrainConfig
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.training.validation.additive_tables import TableMaker
from dkan_core.training.validation.early_stopping import describe_best
from dkan_core.training.validation.scorer import Best

FinishedModel = tuple[TabularModel, ModelConfig, dict[str, Any]]
"""A model on the CPU, in eval mode; its architecture; and what a model folder says about it."""


def finish_model(
    model: TabularModel, best: Best, names: Sequence[str], config: TrainConfig, tables: Callable[[], TableMaker]
) -> FinishedModel:
    """Return a copy of the best model that is calibrated; the model itself, which others are scored with, is not.

    Args:
        model: The model, with the best parameters.
        best: How it scores, and how far the run was.
        names: The labels.
        config: Settings of the run.
        tables: Returns what makes tables of an additive model.
    """
    if isinstance(model, AdditiveFastKAN):
        return tables().finish(model, names, config, best.facts)
    calibration, metrics = describe_best(best.scored, names, config, epoch=best.facts["epoch"], step=best.facts["step"])
    final = build_model(model.config)
    final.load_state_dict(model.state_dict())
    final.calibrate(*calibration)
    return final.eval(), model.config, metrics
