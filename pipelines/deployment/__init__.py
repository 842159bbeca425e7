"""Pipelines that use a trained model."""
