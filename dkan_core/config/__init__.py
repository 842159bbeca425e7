"""Settings of the commands: frozen, keyword-only, checked once, documented field by field.

The string under a field is its help text on the command line, and its group the panel there (see ``dkan_core.cli``).
"""

from dkan_core.config.loading import ConfigT, build_config, check_config, read_settings
from dkan_core.config.prepare import PrepareConfig
from dkan_core.config.resolved import EXECUTION_SETTINGS, ResolvedTrainConfig
from dkan_core.config.schema import Group, field_docs, field_types, item_type, without_none
from dkan_core.config.serving import ServeConfig
from dkan_core.config.strategies import MODEL_PARALLEL, ResolvedStrategy
from dkan_core.config.train import TrainConfig
from dkan_core.config.trainjob import NodesConfig

__all__ = [
    "EXECUTION_SETTINGS",
    "MODEL_PARALLEL",
    "ConfigT",
    "Group",
    "NodesConfig",
    "PrepareConfig",
    "ResolvedStrategy",
    "ResolvedTrainConfig",
    "ServeConfig",
    "TrainConfig",
    "build_config",
    "check_config",
    "field_docs",
    "field_types",
    "item_type",
    "read_settings",
    "without_none",
]
