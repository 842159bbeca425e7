"""Train FastKAN on prepared data, on several nodes."""

from components.training.train_fastkan_nodes.component import train_fastkan_nodes

__all__ = ["train_fastkan_nodes"]
