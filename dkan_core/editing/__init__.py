"""Manual changes to the terms of an additive model."""
