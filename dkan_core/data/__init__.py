"""Raw Parquet to prepared shards to batches."""
