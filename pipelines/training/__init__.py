"""Pipelines that train a model."""
