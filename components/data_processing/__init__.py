"""Components that turn raw data into prepared shards."""
