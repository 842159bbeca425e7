"""The lifecycle of a model on one machine, with all servers involved: ``python -m examples.lifecycle``."""
