"""Pipeline ``single-node``: raw Parquet to a trained, tested and published FastKAN; one pod with all GPUs trains."""

from pipelines.factory import build_pipeline

fastkan_training = build_pipeline("fastkan-training")
