"""Drift: how far new rows, and their scores, are from those that a model was trained with.

The model's preprocessor keeps how often each value of its columns occurred in training, by knot and by code. New rows
are counted in the same bins. Counts of parts add up to those of the whole, so that many pods can count.
"""
