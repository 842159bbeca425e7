"""The figures that docs/development/benchmarks.md publishes, one command each."""
