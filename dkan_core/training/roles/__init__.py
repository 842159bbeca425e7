"""The processes of a run: a file for each."""
