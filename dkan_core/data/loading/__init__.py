"""Batches of prepared rows."""
