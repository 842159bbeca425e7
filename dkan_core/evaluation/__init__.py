"""Metrics and the evaluate command, drift of new rows, comparison with an earlier model, and publishing."""
