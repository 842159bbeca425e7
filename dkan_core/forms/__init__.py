"""The form of a Kubeflow pipeline: settings, URIs, and what its last steps are given."""
