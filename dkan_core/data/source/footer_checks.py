"""Errors in columns for weights and splits that footers and folder names reveal before any row is read.

Some writers store no statistics, so the rows are checked again when they are read.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow.parquet as pq

from dkan_core.config.prepare import MAX_WEIGHT
from dkan_core.data.source.column_types import flat_columns
from dkan_core.data.source.folders import folder_values
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted

# Messages by role, the same as where rows are read.
MISSING = {
    "group": "group column {name!r} is missing in {rows}; expected a group in each",
    "split_column": "split column {name!r} must hold train, valid or test; found None ({rows})",
    "split_by_time": "time column {name!r} is missing in {rows}; expected a time in each",
    "weight": "weight column {name!r} is missing in {rows}; expected a number in each: 0 leaves a row out",
}


def missing_error(path: str, role: str, name: str, rows: int) -> DataError:
    """Return the error of rows without a value in a column that needs one in each, by the role of the column."""
    return DataError(f"{path}: {MISSING[role].format(name=name, rows=counted(rows, 'row'))}")


def check_footer(path: str, footer: pq.FileMetaData, roles: Mapping[str, str]) -> None:
    """Raise DataError where a row has no group, time, split or weight, or a weight that is none.

    Args:
        path: The file.
        footer: Its metadata.
        roles: By role, the column.
    """
    indices = flat_columns(footer, [*roles.values()])
    in_folders = folder_values(path)
    for role, name in roles.items():
        if name not in indices and in_folders.get(name, "") is None and footer.num_rows:
            raise missing_error(path, role, name, footer.num_rows)
        groups = range(footer.num_row_groups if name in indices else 0)
        found = [*filter(None, (footer.row_group(group).column(indices[name]).statistics for group in groups))]
        missing = sum(each.null_count or 0 for each in found)
        if missing:
            raise missing_error(path, role, name, missing)
        if role == "weight":
            _check_weights(path, name, found)


def _check_weights(path: str, name: str, found: Sequence[pq.Statistics]) -> None:
    bounds = [bound for each in found if each.has_min_max for bound in (each.min, each.max)]
    # As float32, the limit itself is a little above it.
    limit = MAX_WEIGHT * (1 + 1e-6)
    wrong = [bound for bound in bounds if isinstance(bound, int | float | Decimal) and not 0 <= bound <= limit]
    if wrong:
        raise DataError(f"{path}: weight column {name!r} must be from 0 to {MAX_WEIGHT:g}; it holds {wrong[0]:g}")
