"""Scoring of snapshots and early stopping."""
