"""An approved model to where others fetch it."""

from components.deployment.deploy_model.component import deploy_model

__all__ = ["deploy_model"]
