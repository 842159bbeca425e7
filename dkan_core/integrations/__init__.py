"""FastKAN from scikit-learn and from notebooks; models in the Kubeflow Model Registry."""
