"""Paths and fsspec URIs: outputs appear whole or not at all, and failures are errors that name the path."""
