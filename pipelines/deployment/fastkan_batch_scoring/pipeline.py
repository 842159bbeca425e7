"""Pipeline ``batch-scoring``: a trained model scores raw Parquet, file by file by many pods, behind a gate."""

from pipelines.factory import build_scoring_pipeline

fastkan_batch_scoring = build_scoring_pipeline()
