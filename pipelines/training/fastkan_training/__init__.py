"""Pipeline ``single-node``: raw Parquet to a trained, tested and published FastKAN; one pod with all GPUs trains."""

from pipelines.training.fastkan_training.pipeline import fastkan_training

__all__ = ["fastkan_training"]
