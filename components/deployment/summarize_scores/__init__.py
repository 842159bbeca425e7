"""The scores of all parts to metrics and drift."""

from components.deployment.summarize_scores.component import summarize_scores

__all__ = ["summarize_scores"]
