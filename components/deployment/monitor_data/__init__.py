"""New rows against what a model was trained with, and the gate."""

from components.deployment.monitor_data.component import monitor_data

__all__ = ["monitor_data"]
