"""Pipeline ``multi-node``: all GPUs of several nodes train, as a TrainJob of Kubeflow Trainer v2."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.form import REQUIRED
from pipelines.steps import evaluate, train

MULTI_NODE = define_pipeline(
    "fastkan-multi-node",
    training=train.ON_NODES,
    form={
        "prepared_uri": {
            "default": REQUIRED,
            "description": "Folder or bucket for the prepared shards, one folder per data set.",
        }
    },
)


@dsl.pipeline(name=MULTI_NODE.name, display_name=MULTI_NODE.display_name)
@MULTI_NODE.form
def fastkan_multi_node(**values: Any) -> evaluate.Outputs:
    """Train FastKAN on the GPUs of several nodes, with Kubeflow Trainer; publish what is good enough."""
    return MULTI_NODE.tasks(values)
