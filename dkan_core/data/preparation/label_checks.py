"""What is refused once rows are counted: labels of other values or one class, splits without rows or weights."""

from collections import Counter

import numpy as np
import pyarrow as pa

from dkan_core.config.prepare import SPLITS
from dkan_core.data.preparation.label_values import listed_others, not_binary
from dkan_core.data.preparation.statistics import BINARY, Counts, count_label_values
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted


def check_binary(name: str, values: pa.Array, where: str, *, advice: str | None = None) -> None:
    """Raise DataError unless a label's column holds 0, 1 or null alone.

    Args:
        name: The column.
        values: Its values.
        where: The file, as messages should call it.
        advice: What can be done about other values. Default: to name the one that counts as 1.
    """
    counter = Counter[object]()
    count_label_values(counter, values)
    if any(value not in BINARY for value in counter):
        raise not_binary(name, [counter], where, advice)


def check_values(counts: Counts, where: str, *, advice: str | None = None) -> None:
    """Raise DataError unless every label holds 0, 1 or null alone; for ``advice`` see ``check_binary``."""
    for name, counters in counts.labels.items():
        if any(value not in BINARY for counter in counters for value in counter):
            raise not_binary(name, counters, where, advice)


def check_counts(counts: Counts, roles: ColumnRoles, where: str) -> None:
    """Raise DataError unless some row of each split has a weight, and every label has both classes where it must.

    One label needs both classes in every split that has rows. Of several labels, each needs both in train and
    at least one needs both in each other split.
    """
    check_values(counts, where)
    for index, split in enumerate(SPLITS):
        if roles.weight is not None and counts.rows[index] and counts.weights[index] == 0:
            raise DataError(f"{where}: weight column {roles.weight!r} is 0 in every row of {split}")
        if counts.rows[index] == 0 and split != "test":
            missing = f"no rows in the {split} split, of {sum(counts.rows):,} in all"
            raise DataError(f"{where}: {missing}; {_split_advice(roles, split, 'some rows')}")
        classes = {name: counts.weighted(name, index) for name in counts.labels}
        lacking = [name for name, counter in classes.items() if not (counter[0] and counter[1])]
        needed = 1 if split == "train" else len(counts.labels)
        if counts.rows[index] and len(lacking) >= needed:
            raise _one_class(lacking[0], counts, split, roles, where)


def _one_class(name: str, counts: Counts, split: str, roles: ColumnRoles, where: str) -> DataError:
    """Describe a label that has one class only in a split, and say what may help."""
    index = SPLITS.index(split)
    counters = [counts.weighted(name, each) for each in range(len(SPLITS))]
    found = [(value, count) for value, count in counters[index].items() if value is not None]
    seen = " and ".join(f"{value!r} in {counted(count, 'row')}" for value, count in found) or "no measured value"
    everywhere, all_rows = (sum(each, Counter[object]()) for each in (counters, counts.labels[name]))
    rarer = min((0, 1), key=lambda value: everywhere[value])
    splits = int(np.count_nonzero(counts.rows))
    if 0 < everywhere[rarer] < splits and len(counts.labels) == 1:
        hint = f"; rows with {rarer} in all: {everywhere[rarer]}; each of the {splits} splits needs one"
    elif everywhere[0] and everywhere[1]:
        hint = f"; {_split_advice(roles, split, 'rows of both classes')}"
    elif all_rows[rarer]:
        hint = f"; {roles.weight!r} is 0 in every row that holds {rarer} ({all_rows[rarer]:,})"
    elif name in roles.positive and everywhere[0]:
        others = listed_others(everywhere[0], counts.others[name])
        hint = f"; no row holds {roles.positive[name]!r}: the column holds {others}"
    else:
        hint = ""
    among = f" among rows whose {roles.weight!r} is above 0" if counters[index] != counts.labels[name][index] else ""
    return DataError(f"{where}: label column {name!r} has one class only in {split}{among}: {seen}{hint}")


def _split_advice(roles: ColumnRoles, split: str, what: str) -> str:
    """Return how ``what``, such as some rows, gets into a split."""
    if roles.split_column is not None:
        return f"let column {roles.split_column!r} hold {split!r} in {what}, or leave out --split-column"
    if roles.split_by_time is not None:
        return "set --split, or name a --split-column"
    if roles.group is not None:
        return f"rows of one {roles.group} are in one split: set --split or another --seed, or name a --split-column"
    return "set --split 60/20/20 or another --seed, or name a --split-column"
