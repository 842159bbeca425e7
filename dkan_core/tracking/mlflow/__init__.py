"""Runs, evaluations and models in MLflow."""
