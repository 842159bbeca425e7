"""Paths and fsspec URIs: outputs appear whole or not at all, and what cannot be reached is a named error."""
