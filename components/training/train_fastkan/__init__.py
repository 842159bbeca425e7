"""Train FastKAN on prepared data."""

from components.training.train_fastkan.component import train_fastkan

__all__ = ["train_fastkan"]
