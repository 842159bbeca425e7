"""Pipeline ``parallel-prepare``: many pods prepare, one pod with all GPUs trains."""

from pipelines.factory import build_pipeline
from pipelines.steps import prepare

fastkan_parallel_prepare = build_pipeline("fastkan-parallel-prepare", preparation=prepare.IN_PARALLEL)
