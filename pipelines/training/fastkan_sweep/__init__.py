"""Pipeline ``sweep``: several runs with other settings, of which the best by validation is published."""

from pipelines.training.fastkan_sweep.pipeline import fastkan_sweep

__all__ = ["fastkan_sweep"]
