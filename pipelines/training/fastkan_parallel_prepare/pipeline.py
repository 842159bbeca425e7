"""Pipeline ``parallel-prepare``: many pods prepare, one pod with all GPUs trains."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.pods import PARTS_AT_A_TIME, Settings
from pipelines.steps import evaluate, prepare

PARALLEL_PREPARE = define_pipeline(
    "fastkan-parallel-prepare", preparation=prepare.IN_PARALLEL, settings=Settings(parallelism=PARTS_AT_A_TIME)
)


@dsl.pipeline(name=PARALLEL_PREPARE.name, display_name=PARALLEL_PREPARE.display_name)
@PARALLEL_PREPARE.form
def fastkan_parallel_prepare(**values: Any) -> evaluate.Outputs:
    """Train FastKAN on terabytes of tabular Parquet, prepared by many pods; publish what is good enough."""
    return PARALLEL_PREPARE.tasks(values)
