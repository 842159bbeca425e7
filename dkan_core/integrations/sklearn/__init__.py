"""FastKAN as a scikit-learn classifier: its rows, its parameters, and how it is saved."""
