"""Kubeflow pipelines over the components, and the command that compiles and runs them."""
