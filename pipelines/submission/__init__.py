"""Runs on a Kubeflow server: sent, followed to their end, and reported."""
