"""How well dkan predicts beside other tabular learners: ``python -m benchmarks.quality``.

A data set goes through one file after the other: ``data`` (checked and split once, so that every model gets the same
rows), ``runner`` (one subprocess a fit, with its CPU seconds), ``models`` (one function a model), ``scores`` (metrics
and bootstrap), ``summary`` (one row a model, and over the sets), ``report``, ``picture`` and ``published``
(figures that are kept, and whether later ones fell).
"""
