"""Pipeline ``parallel-prepare``: many pods prepare, one pod with all GPUs trains."""

from pipelines.training.fastkan_parallel_prepare.pipeline import fastkan_parallel_prepare

__all__ = ["fastkan_parallel_prepare"]
