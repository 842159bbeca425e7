"""A published model in a Kubeflow Model Registry."""

from components.deployment.register_model.component import register_model

__all__ = ["register_model"]
