"""Pipeline ``batch-scoring``: a trained model scores raw Parquet, file by file by many pods, behind a gate."""

from pipelines.deployment.fastkan_batch_scoring.pipeline import fastkan_batch_scoring

__all__ = ["fastkan_batch_scoring"]
