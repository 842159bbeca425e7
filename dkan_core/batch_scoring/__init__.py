"""Scores of raw Parquet and of frames: in this process, or by many pods by file, with metrics, drift and a gate."""
