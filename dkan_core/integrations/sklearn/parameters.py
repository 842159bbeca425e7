"""The classifier's parameters, as JSON holds them, and as the settings of a training."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dkan_core.config import TrainConfig, build_config
from dkan_core.utils.resources import available_cores


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON holds them; a random state that is no number is None.

    >>> import numpy as np
    >>> plain_parameters({"hidden": (8,), "epochs": np.int64(3), "random_state": np.random.RandomState(0)})
    {'hidden': [8], 'epochs': 3, 'random_state': None}
    """
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in parameters.items()}
    if not isinstance(plain["random_state"], int):
        plain["random_state"] = None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def train_config(parameters: Mapping[str, Any], seed: int) -> TrainConfig:
    """Return parameters as ``TrainConfig`` holds them; its defaults stand in for None.

    Raises:
        ConfigError: A parameter is out of range.
    """
    known = {field.name for field in fields(TrainConfig)}
    given = {name: value for name, value in plain_parameters(parameters).items() if name in known and value is not None}
    if isinstance(given.get("hidden"), int):
        given["hidden"] = [given["hidden"]]
    return build_config(TrainConfig, {**given, "workers": 1, "seed": seed})


def thread_count(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` stands for: as joblib counts, -1 is all cores, -2 all but one.

    More threads than cores help nobody, and many more crash the interpreter.
    """
    cores = available_cores()
    if n_jobs is None:
        return cores
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0")
    return min(n_jobs, cores) if n_jobs > 0 else max(1, cores + 1 + n_jobs)
