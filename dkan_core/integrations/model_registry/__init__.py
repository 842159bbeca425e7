"""A Kubeflow Model Registry: published models as versions, with what is known of them."""
