"""The gate of a batch scoring: whole scores that are fit to be used."""

from components.deployment.complete_scores.component import complete_scores

__all__ = ["complete_scores"]
