"""Runs on several nodes: a TrainJob of Kubeflow Trainer v2, made, followed and cleaned up."""
