"""Settings of a run with nothing left open, for tests of its parts."""

from typing import Any

from dkan_core import TrainConfig
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.setup.defaults import resolve


def resolved(rows: int = 1000, labels: int = 1, **settings: Any) -> ResolvedTrainConfig:
    """Resolve settings for so many rows and labels: on the CPU unless they say otherwise."""
    return resolve(TrainConfig(**{"device": "cpu", **settings}), rows, labels)
