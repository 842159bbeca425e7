"""The classifier's parameters, as JSON holds them, and as the settings of a training."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dkan_core.config import TrainConfig, build_config
from dkan_core.utils.resources import available_cores


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON holds them; a random state that is no number is None.

    >>> import numpy as np
    >>> plain_parameters({"hidden": (np.int64(8),), "class_weight": {1: 2.0}, "random_state": np.random.RandomState(0)})
    {'hidden': [8], 'class_weight': [[1, 2.0]], 'random_state': None}
    """
    plain = {name: _plain(value) for name, value in parameters.items()}
    if isinstance(plain.get("class_weight"), dict):
        # As pairs, because keys of JSON objects are text.
        plain["class_weight"] = _plain([*plain["class_weight"].items()])
    if not isinstance(plain["random_state"], int):
        plain["random_state"] = None
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def constructor_parameters(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's parameters, given the result of ``plain_parameters``.

    >>> constructor_parameters({"hidden": [8], "class_weight": [[1, 2.0]]})
    {'hidden': (8,), 'class_weight': {1: 2.0}}
    """
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    if isinstance(parameters.get("class_weight"), tuple):
        parameters["class_weight"] = dict(parameters["class_weight"])
    return parameters


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
    """Return the number of threads for ``n_jobs``, counted as in joblib: -1 is all cores, -2 all but one.

    None is what ``OMP_NUM_THREADS`` says, or else all cores.

    More threads than cores do not help, and many more crash the interpreter.
    """
    cores = available_cores()
    if n_jobs is None:
        # joblib sets it in its workers, so that they share the cores.
        limit = os.environ.get("OMP_NUM_THREADS", "")
        return min(cores, int(limit) or cores) if limit.isdecimal() else cores
    if not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or a whole number other than 0, got {n_jobs!r}")
    return min(n_jobs, cores) if n_jobs > 0 else max(1, cores + 1 + n_jobs)
