"""Batch scoring: raw Parquet, file by file, by many processes or pods at once; metrics, drift and a gate."""
