"""FastKAN from scikit-learn and from notebooks."""
