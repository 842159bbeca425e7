"""Pipeline ``multi-node``: all GPUs of several nodes train, as a TrainJob of Kubeflow Trainer v2."""

from pipelines.training.fastkan_multi_node.pipeline import fastkan_multi_node

__all__ = ["fastkan_multi_node"]
