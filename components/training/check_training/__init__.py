"""Check the settings of a training before its data are prepared."""

from components.training.check_training.component import check_training

__all__ = ["check_training"]
