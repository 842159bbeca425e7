"""All ways to train on several workers in comparison: time, speedup, exchanged bytes and average precision."""
