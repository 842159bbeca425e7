"""The model's architecture for a data set, from the settings and a sample of the train split."""

import logging
from dataclasses import replace

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader
from dkan_core.model.architecture import ModelConfig
from dkan_core.training.setup.additive_architecture import choose_additive
from dkan_core.training.setup.additive_fit_limits import fitted_pairs
from dkan_core.training.setup.architecture_search import search_architecture
from dkan_core.training.setup.feature_crosses import choose_missing, choose_one_hot_groups, search_sample
from dkan_core.training.setup.feature_selection import select_features
from dkan_core.training.setup.parameter_groups import learning_rate_factors
from dkan_core.training.setup.placement import threads_per_worker
from dkan_core.training.setup.search_space import SEARCHED_SETTINGS, possible_findings
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.utils.messages import some_of
from dkan_core.utils.torch_resources import torch_threads

# Most pairs in a line of the log, as there may be a hundred.
SHOWN_PAIRS = 12

logger = logging.getLogger(__name__)


def choose_architecture(reader: RowReader, prepared: PreparedData, config: ResolvedTrainConfig) -> ModelConfig:
    """Return the architecture for a data set, whose train split ``reader`` reads."""
    if config.model == "additive":
        return _choose_additive(reader, prepared, config)
    architecture, found = _choose_network(reader, prepared, config)
    return select_features(reader, prepared, architecture, found) if config.architecture_search else architecture


def _choose_network(
    reader: RowReader, prepared: PreparedData, config: ResolvedTrainConfig
) -> tuple[ModelConfig, ResolvedTrainConfig]:
    """Return the architecture of a network that reads all columns, and the settings with what a search has found.

    Raises:
        ConfigError: A part with a learning rate of its own is in no network that the search may find.
    """
    one_hot_groups: tuple[tuple[int, ...], ...] = ()
    missing: tuple[int, ...] = ()
    if config.model == "auto":
        encoding = prepared.preprocessor
        sample = search_sample(reader, columns=encoding.row_values, labels=len(prepared.labels))
        one_hot_groups = choose_one_hot_groups(encoding, sample, reader.rows)
        missing = choose_missing(encoding, sample, one_hot_groups)
        names = [feature.name for feature in encoding.coded]
        crosses = [" x ".join(names[index] for index in group) for group in one_hot_groups if len(group) > 1]
        logger.info("feature crosses that help on unseen rows: %s", ", ".join(crosses) or "none")
    architecture = ModelConfig.for_data(prepared, config, one_hot_groups=one_hot_groups, missing=missing)
    if not config.architecture_search:
        return architecture, config
    if config.lr_multipliers:
        # Before the search, which takes time: the largest network that it may find has all parts that any may have.
        largest = possible_findings(config)[-1]
        network = ModelConfig.for_data(prepared, largest, one_hot_groups=one_hot_groups, missing=missing)
        learning_rate_factors(untrained_model(network, prepared, largest), config, reader.rows)
    found = search_architecture(reader, prepared, architecture, config)
    return ModelConfig.for_data(prepared, found, one_hot_groups=one_hot_groups, missing=missing), found


def settle_architecture(reader: RowReader, prepared: PreparedData, config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    """Return the settings for runs that are compared, with what one search finds; their networks read all columns."""
    if not config.architecture_search:
        return config
    with torch_threads(threads_per_worker(1)):
        return settled(config, _choose_network(reader, prepared, config)[0])


def settled(config: ResolvedTrainConfig, architecture: ModelConfig) -> ResolvedTrainConfig:
    """Return the settings with the architecture that a search has found, so that no second search follows."""
    found = {name: getattr(architecture, name) for name in SEARCHED_SETTINGS}
    return replace(config, **found, architecture_search=False)


def _choose_additive(reader: RowReader, prepared: PreparedData, config: ResolvedTrainConfig) -> ModelConfig:
    encoding = prepared.preprocessor
    columns = len(encoding.numeric) + len(encoding.coded)
    sample = search_sample(reader, columns=columns, labels=len(prepared.labels))
    # The fit of the tables removes pairs of next to no effect.
    searched = fitted_pairs(config, columns, reader.rows, len(prepared.labels))
    one_hot_groups, shape = choose_additive(encoding, sample, config, searched)
    names = [feature.name for feature in (*encoding.numeric, *encoding.coded)]
    pairs = [" x ".join(names[feature] for feature in pair) for pair in shape.pairs]
    logger.info("pairs to learn: %s", some_of(pairs, SHOWN_PAIRS) or "none")
    if searched is not None:
        terms = len(encoding.numeric) + len(one_hot_groups) + len(pairs)
        logger.info("after gradient training, all %d terms will be fitted by penalized likelihood", terms)
    return ModelConfig.for_data(prepared, config, one_hot_groups=one_hot_groups, additive=shape)
