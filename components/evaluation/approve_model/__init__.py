"""The gate before a model is published."""

from components.evaluation.approve_model.component import approve_model

__all__ = ["approve_model"]
