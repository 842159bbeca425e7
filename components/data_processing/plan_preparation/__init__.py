"""Plan a preparation by many pods."""

from components.data_processing.plan_preparation.component import plan_preparation

__all__ = ["plan_preparation"]
