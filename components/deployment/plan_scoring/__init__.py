"""A model and raw Parquet to a plan of how many pods score it together."""

from components.deployment.plan_scoring.component import plan_scoring

__all__ = ["plan_scoring"]
