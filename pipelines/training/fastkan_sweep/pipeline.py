"""Pipeline ``sweep``: several runs with other settings, of which the best by validation is published."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.steps import evaluate, train

SWEEP = define_pipeline("fastkan-sweep", training=train.SWEEP)


@dsl.pipeline(name=SWEEP.name, display_name=SWEEP.display_name)
@SWEEP.form
def fastkan_sweep(**values: Any) -> evaluate.Outputs:
    """Train FastKAN with several settings on tabular Parquet data; publish the best one if it is good enough."""
    return SWEEP.tasks(values)
