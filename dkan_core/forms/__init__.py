"""The form of a Kubeflow pipeline: settings, URIs, and parameters of its last steps."""
