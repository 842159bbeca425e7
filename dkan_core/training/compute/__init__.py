"""A worker's computation."""
