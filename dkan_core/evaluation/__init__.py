"""Metrics and the evaluate command."""
