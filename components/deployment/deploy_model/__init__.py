"""A published model, served by KServe."""

from components.deployment.deploy_model.component import deploy_model

__all__ = ["deploy_model"]
