"""What a refit takes from the training before it (``TrainConfig.refit``).

scikit-learn's searches and AutoGluon call this refit: once validation has decided all choices, its rows are better used
for training. A second training repeats the first over the rows of train and valid together. Nothing can be measured on
valid then, so the choices and the metrics are those of the first training.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dkan_core.config import ResolvedTrainConfig
from dkan_core.errors import ConfigError
from dkan_core.model.calibration import Calibration
from dkan_core.training.state.endings import STOP_CRITERIA
from dkan_core.utils.arrays import Float32

logger = logging.getLogger(__name__)

CALIBRATION = ("calibration_scale", "calibration_shift")
"""What metrics call a label's calibration: its log-odds are multiplied by the first, then the second is added."""

ID_PENALTY = "id_penalty"
"""What metrics call the weight of the penalty that holds a label's numbers of ids in a blend."""


@dataclass(frozen=True, kw_only=True)
class RefitChoices:
    """What the first training chose."""

    metrics: dict[str, Any]
    """What the folder of the first model says about it, its choices included."""

    averaged: bool
    """Whether it had the moving average of the parameters."""

    ignored_features: tuple[int, ...]
    """Features that its network does not read."""

    @classmethod
    def of(
        cls, metrics: Mapping[str, Any], history: Sequence[Mapping[str, Any]], ignored_features: tuple[int, ...] = ()
    ) -> Self:
        """Return the choices of a training.

        Raises:
            ConfigError: An earlier version has written the metrics, without the choices.
        """
        best = next((entry for entry in history if entry["step"] == metrics["step"]), None)
        if best is None or any(name not in label for name in CALIBRATION for label in metrics["labels"].values()):
            raise ConfigError("refit: the model is of an earlier version, which did not record its choices; retrain")
        raw, average = (best.get(f"average_precision_{name}", 0.0) for name in ("raw", "ema"))
        return cls(metrics=dict(metrics), averaged=average > raw, ignored_features=ignored_features)

    @property
    def digest(self) -> str:
        """Digest of all choices: with other choices, a second training is another one."""
        return hashlib.sha256(json.dumps([self.metrics, self.averaged], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def calibration(self) -> Calibration:
        """The scale and shift of each label's log-odds."""
        labels = self.metrics["labels"].values()
        scale_L, shift_L = (np.array([each[name] for each in labels], np.float32) for name in CALIBRATION)
        return scale_L, shift_L

    @property
    def id_penalties(self) -> list[float]:
        """The weights of the penalties that hold the numbers of ids in a blend, by label; none without such a term."""
        labels = self.metrics["labels"].values()
        return [each[ID_PENALTY] for each in labels if ID_PENALTY in each]

    def parameters(self, values_VP: Float32) -> Float32:
        """Return what the first model had, a training's parameters or their moving average, ``(1, P)``."""
        return values_VP[-1:] if self.averaged else values_VP[:1]

    def settings(self, config: ResolvedTrainConfig) -> ResolvedTrainConfig:
        """Return the settings of the second training, given those of the first: the best number of epochs, rounded.

        The schedule of the learning rate still spans the first training's epochs.
        """
        return replace(
            config,
            epochs=min(config.epochs, max(1, round(self.metrics["epoch"]))),
            schedule_epochs=config.schedule_epochs or config.epochs,
            max_seconds=None,
        )


def may_refit(ending: str) -> bool:
    """Return whether a second training may follow a first that ended so; warn if the time limit prevents it.

    Args:
        ending: One of ``ENDINGS``.
    """
    if ending == "time":
        logger.warning("no refit: max_seconds is used up; the saved model was trained on the train split only")
    return STOP_CRITERIA[ending].allows_refit
