"""Raw Parquet to a text that changes with it."""

from components.data_processing.fingerprint_parquet.component import fingerprint_parquet

__all__ = ["fingerprint_parquet"]
