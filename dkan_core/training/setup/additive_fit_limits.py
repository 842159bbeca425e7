"""Which additive models are fitted by penalized likelihood, and to how many rows.

The limits were chosen on validation rows: docs/benchmarks/experiments.md says of which data sets.
"""

from dkan_core.config import TrainConfig
from dkan_core.data.format.manifest import PreparedData

# Rows times terms times labels up to which the tables of an additive model are fitted after gradient training: about
# a minute on one core, and 400 MB, in addition to the memory of the sharpest pairs.
MAX_FITTED_CELLS = 100_000_000
# Below this number of rows, a term's step costs no less.
MIN_FITTED_ROWS = 25_000
# Pairs with ``pairs="auto"``, as many as the cells above allow. The penalty removes those that are noise.
MIN_FITTED_PAIRS, MAX_FITTED_PAIRS = 48, 96
# Rows per term from which on the fit had a better validation AP than gradients in every run tried. With four rows per
# term (fingerprints of 1,024 bits) gradients may be far better.
MIN_ROWS_PER_TERM = 70

# Rows times terms times labels up to which the additive model of a blend is fitted: three seconds on one core, and
# 150 MB, in addition to the memory of the sharpest pairs. If there are more rows, it is fitted to a sample of them.
MAX_BLEND_CELLS = 30_000_000
# Fewest rows of such a sample, and fewest train rows of a blend: with fewer, neither its terms nor its weight in the
# blend can be estimated.
MIN_SAMPLED_ROWS, MIN_BLEND_ROWS = 20_000, 100
# The number of terms whose fit takes as long as that of one ID per row.
TERMS_PER_ID = 10


def can_fit_tables(rows: int, terms: int, labels: int) -> bool:
    """Return whether the tables of an additive model with this number of terms are fitted after gradient training.

    >>> can_fit_tables(2_000_000, 40, 1), can_fit_tables(2_000_000, 40, 12), can_fit_tables(5_000, 1_000, 12)
    (True, False, False)
    """
    return max(rows, MIN_FITTED_ROWS) * terms * labels <= MAX_FITTED_CELLS


def fitted_pairs(config: TrainConfig, columns: int, rows: int, labels: int) -> int | None:
    """Return how many pairs a run from scratch has if its tables are fitted; None if they are not.

    >>> auto = TrainConfig(model="additive")
    >>> [fitted_pairs(auto, columns=28, rows=rows, labels=1) for rows in (10_000, 1_000_000, 2_000_000)]
    [96, 72, None]
    """
    if config.model != "additive" or config.init_from is not None:
        return None
    if config.pairs != "auto":
        pairs = int(config.pairs)
        return pairs if can_fit_tables(rows, columns + pairs, labels) else None
    fitting = MAX_FITTED_CELLS // (max(rows, MIN_FITTED_ROWS) * labels) - columns
    return min(fitting, MAX_FITTED_PAIRS) if fitting >= MIN_FITTED_PAIRS else None


def needs_no_gradients(config: TrainConfig, prepared: PreparedData) -> bool:
    """Return whether tables are fitted on so many rows per term that the fit beat gradients in every run tried."""
    encoding, rows, labels = prepared.preprocessor, prepared.splits["train"].rows, len(prepared.labels)
    columns = len(encoding.numeric) + len(encoding.coded)
    pairs = fitted_pairs(config, columns, rows, labels)
    return pairs is not None and rows >= MIN_ROWS_PER_TERM * (columns + pairs)


def blend_rows(rows: int, terms: int, labels: int) -> int:
    """Return how many rows the additive model of a blend is fitted to; 0 if there is no blend.

    >>> [blend_rows(rows, terms=100, labels=1) for rows in (90, 100_000, 10_000_000)], blend_rows(5_000, 1_000, 12)
    ([0, 100000, 300000], 0)
    """
    fitted = min(rows, MAX_BLEND_CELLS // (terms * labels))
    return fitted if rows >= MIN_BLEND_ROWS and fitted >= min(rows, MIN_SAMPLED_ROWS) else 0
