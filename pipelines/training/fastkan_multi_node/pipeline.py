"""Pipeline ``multi-node``: all GPUs of several nodes train, as a TrainJob of Kubeflow Trainer v2."""

from pipelines.factory import build_pipeline
from pipelines.form import REQUIRED
from pipelines.steps import train

fastkan_multi_node = build_pipeline(
    "fastkan-multi-node", training=train.ON_NODES, form={"prepared_uri": {"default": REQUIRED}}
)
