"""FastKAN and additive models, their input encoder, their kernels, and models on disk."""
