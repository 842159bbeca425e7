"""Prepared data on disk: the manifest and its shards."""
