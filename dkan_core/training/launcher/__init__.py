"""The launcher: it starts a run, watches it and writes what is left of it."""
