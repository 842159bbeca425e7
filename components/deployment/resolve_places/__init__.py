"""The places of a run: all pods share them, and some have its date."""

from components.deployment.resolve_places.component import resolve_places

__all__ = ["resolve_places"]
