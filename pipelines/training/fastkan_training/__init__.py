"""Train and evaluate FastKAN on a tabular data set."""

from pipelines.training.fastkan_training.pipeline import fastkan_training

__all__ = ["fastkan_training"]
