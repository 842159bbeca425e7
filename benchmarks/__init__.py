"""The figures that docs/benchmarks.md publishes, one command each."""
