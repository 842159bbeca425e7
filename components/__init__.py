"""Kubeflow Pipelines components: thin steps over ``dkan_core``, one folder each."""
