"""The figures that docs/benchmarks/ publishes, one command for each."""
