"""The search space of ``architecture_search``: when there is a search, and the settings that it may find."""

from dataclasses import replace

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.config.strategies import MODEL_PARALLEL

# The settings that a search chooses if none of them is given.
SEARCHED_SETTINGS = ("hidden", "num_centers", "dropout")
# Fewest rows for a search, and for a search that tries a second hidden layer: fewer rows do not show what that is
# worth.
SEARCH_ROWS, DEPTH_SEARCH_ROWS = 2_000, 50_000
# Units of the first hidden layer per unit of a second one.
WIDTH_PER_SECOND = 4
# Basis functions and dropout of a network that can learn more. With a second hidden layer and 280,000 to 1,400,000
# rows, dropout lost 0.004 to 0.006 of AP.
FINE_CENTERS, NO_DROPOUT = 16, 0.0


def searches_architecture(config: TrainConfig, rows: int) -> bool:
    """Return whether trials choose the architecture: not if settings name any part of it.

    >>> searches_architecture(TrainConfig(), 5_000), searches_architecture(TrainConfig(hidden=(64,)), 5_000)
    (True, False)
    """
    if isinstance(config, ResolvedTrainConfig):
        return config.architecture_search
    is_open = config.architecture_search and config.model == "auto" and rows >= SEARCH_ROWS
    is_open = is_open and config.strategy not in MODEL_PARALLEL
    return is_open and all(getattr(config, name) is None for name in SEARCHED_SETTINGS)


def refined(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    """Return the settings of a network with more basis functions, each of them narrower."""
    return replace(config, num_centers=FINE_CENTERS, dropout=NO_DROPOUT)


def deepened(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    """Return the settings of a network with a second hidden layer."""
    return replace(config, hidden=(*config.hidden, max(1, config.hidden[-1] // WIDTH_PER_SECOND)), dropout=NO_DROPOUT)


def possible_findings(config: ResolvedTrainConfig) -> list[ResolvedTrainConfig]:
    """Return the settings that a search may find; the first are those of a run without one."""
    if not config.architecture_search:
        return [config]
    shallow = [config, refined(config)]
    return [*shallow, *map(deepened, shallow)]
