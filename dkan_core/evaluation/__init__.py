"""Metrics, scoring and the evaluate command."""
