"""The randomly initialized model that training starts from without ``init_from``."""

import math

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.model.parameter_count import check_fits_memory, check_sketch
from dkan_core.model.random_state import random_state


def untrained_model(architecture: ModelConfig, prepared: PreparedData, config: ResolvedTrainConfig) -> TabularModel:
    """Return the model that training starts from: a function of the seed, with the labels' prior log-odds by rows.

    Raises:
        ConfigError: It needs more memory than there is, or a sketch does not make its first layer smaller.
    """
    check_sketch(architecture)
    check_fits_memory(architecture)
    with random_state(config.seed):
        model = build_model(architecture)
    classes = [prepared.splits["train"].classes[label] for label in prepared.labels]
    # Half a row is added to each class, as a label may have only one class.
    positives = [config.pos_weight * counts["1"] for counts in classes]
    model.start_at([math.log((p + 0.5) / (counts["0"] + 0.5)) for p, counts in zip(positives, classes, strict=True)])
    return model
