"""A small real data set as Parquet."""

from components.data_processing.sample_parquet.component import sample_parquet

__all__ = ["sample_parquet"]
