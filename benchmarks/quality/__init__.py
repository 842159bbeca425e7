"""How accurate dkan is compared with other tabular learners: ``python -m benchmarks.quality``.

A data set goes through these files: ``data`` (checked and split once, so that every model gets the same rows),
``runner`` (one subprocess per fit, with its CPU seconds), ``models`` (one function per model), ``scores`` (metrics and
bootstrap), ``summary`` (one row per model, also over all data sets), ``report``, ``picture`` and ``published`` (figures
that are kept, and whether later ones have dropped).
"""
