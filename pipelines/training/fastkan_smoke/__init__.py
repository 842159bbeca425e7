"""Pipeline ``smoke``: every step once, on real data that the image carries: minutes, without GPU or bucket."""

from pipelines.training.fastkan_smoke.pipeline import fastkan_smoke

__all__ = ["fastkan_smoke"]
