"""Scoring: encoded rows, prepared splits, raw Parquet."""
