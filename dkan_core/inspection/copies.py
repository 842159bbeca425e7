"""Rows of valid that are copies of rows of train: a model has seen them, so that scores on valid are too high."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dkan_core.data.hashing import content_keys
from dkan_core.inspection.checks import count_distinct
from dkan_core.utils.arrays import UInt64

MIN_SHARE, MIN_COPIES = 0.05, 10
# Rows of few columns with few values are equal by chance. Then train has few different rows, or almost all rows are
# equal in one half of the columns, or many are equal in each half but not in all columns, compared with those that are
# equal in all, or with the rest. Measured on ten data sets: with up to 8 of their columns, and with copies.
MIN_DIFFERENT, ALL_IN_HALF, MORE_IN_HALF = 0.4, 0.995, 0.5


def find_copies(train: pa.Table, valid: pa.Table, train_rows: int) -> float:
    """Return about which share of the different rows of valid are copies of rows of train; 0 if that may be chance.

    Args:
        train: The features of a sample of train.
        valid: Those of a sample of valid.
        train_rows: Rows of train in all.
    """
    names = sorted(train.column_names, key=lambda name: -count_distinct(train[name]))
    ours, theirs = (_keys_of_halves(rows, names) for rows in (train, valid))
    all_ours, all_theirs = ours[0] + ours[1], theirs[0] + theirs[1]
    # Each row once, as many rows may hold nothing but zeros or missing values.
    _, different = np.unique(all_theirs, return_index=True)
    equal, *in_halves = (
        float(np.isin(keys[different], known).mean())
        for keys, known in ((all_theirs, all_ours), *zip(theirs, ours, strict=True))
    )
    is_chance = (
        len(np.unique(all_ours)) < MIN_DIFFERENT * len(train)
        or max(in_halves) > ALL_IN_HALF
        or min(in_halves) - equal > MORE_IN_HALF * min(equal, 1 - equal)
        or equal * len(different) < MIN_COPIES
    )
    share = min(1.0, equal * train_rows / len(train))
    return 0.0 if is_chance or share < MIN_SHARE else share


def _keys_of_halves(rows: pa.Table, names: Sequence[str]) -> list[UInt64]:
    """Return the keys of the rows' values in every second column, and in the others; the sum is that of all columns."""
    batches = rows.to_batches()
    return [
        np.concatenate([content_keys(batch.select(half)) for batch in batches]) for half in (names[::2], names[1::2])
    ]
