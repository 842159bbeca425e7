"""Check the settings of a training on several nodes before its data are prepared."""

from components.training.check_training_nodes.component import check_training_nodes

__all__ = ["check_training_nodes"]
