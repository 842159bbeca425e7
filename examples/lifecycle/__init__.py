"""A model's life on one machine, with every server it meets: ``python -m examples.lifecycle``."""
