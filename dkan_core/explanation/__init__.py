"""What a model learned: which columns count, the curve of each, and which pairs work together."""
