"""Pipeline ``single-node-pvc``: prepared data and checkpoints on a shared volume, which no step copies."""

from pipelines.training.fastkan_single_node_pvc.pipeline import fastkan_single_node_pvc

__all__ = ["fastkan_single_node_pvc"]
