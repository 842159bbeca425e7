"""URIs of a run: all pods can reach them, and some contain its date."""

from components.deployment.resolve_uris.component import resolve_uris

__all__ = ["resolve_uris"]
