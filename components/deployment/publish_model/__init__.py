"""An approved model to where others fetch it."""

from components.deployment.publish_model.component import publish_model

__all__ = ["publish_model"]
