"""FastKAN as a scikit-learn classifier, and what its model folder says beside the model."""
