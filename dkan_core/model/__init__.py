"""FastKAN, its input encoder, its kernels, and models on disk."""
