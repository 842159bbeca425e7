"""One part of a batch scoring: raw Parquet to probabilities."""

from components.deployment.predict_parquet.component import predict_parquet

__all__ = ["predict_parquet"]
