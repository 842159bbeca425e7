"""Pipeline ``single-node``: raw Parquet to a trained, tested and published FastKAN; one pod with all GPUs trains."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.steps import evaluate

SINGLE_NODE = define_pipeline("fastkan-training")


@dsl.pipeline(name=SINGLE_NODE.name, display_name=SINGLE_NODE.display_name)
@SINGLE_NODE.form
def fastkan_training(**values: Any) -> evaluate.Outputs:
    """Train FastKAN on tabular Parquet data for binary or multi-label classification; publish what is good enough."""
    return SINGLE_NODE.tasks(values)
