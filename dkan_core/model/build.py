"""The model of an architecture."""

from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.tabular import TabularFastKAN


def build_model(config: ModelConfig) -> TabularModel:
    """Return a model that is not trained yet; torch's random state decides where it starts."""
    if config.model == "additive":
        return AdditiveFastKAN(config)
    return TabularFastKAN(config) if config.blended is None else BlendedFastKAN(config)
