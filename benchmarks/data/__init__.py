"""How fast data are prepared and loaded: ``python -m benchmarks.data``."""
