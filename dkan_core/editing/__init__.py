"""Changes that a person makes to the terms of an additive model."""
