"""What is decided before a run starts."""
