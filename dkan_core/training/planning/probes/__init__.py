"""Processes that measure for a plan."""
