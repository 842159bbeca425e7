"""Evaluate a trained FastKAN on one split."""

from components.evaluation.evaluate_fastkan.component import evaluate_fastkan

__all__ = ["evaluate_fastkan"]
