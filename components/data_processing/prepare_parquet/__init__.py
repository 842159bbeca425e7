"""Prepare raw Parquet for training."""

from components.data_processing.prepare_parquet.component import prepare_parquet

__all__ = ["prepare_parquet"]
