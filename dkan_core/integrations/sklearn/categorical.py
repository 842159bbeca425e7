"""Columns of whole numbers to read as categories, chosen as in scikit-learn's own estimators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dkan_core.data.source.column_types import is_whole
from dkan_core.data.whole_floats import integer_texts
from dkan_core.utils.messages import hint


def with_categories(table: pa.Table, chosen: Any) -> pa.Table:
    """Return rows whose chosen columns of whole numbers, integers or floats without fractions, are text.

    Args:
        table: The rows.
        chosen: Names or indices of columns, or a mask of them; None: there are none.

    Raises:
        ValueError: A chosen column does not exist, or holds something else than whole numbers, strings or booleans.

    >>> with_categories(pa.table({"x": [0.5], "user": [7.0]}), ["user"]).to_pydict()
    {'x': [0.5], 'user': ['7']}
    """
    names = chosen_columns(chosen, table.column_names)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table({**columns, **{name: _texts(columns[name], name) for name in names}}) if names else table


def chosen_columns(chosen: Any, columns: Sequence[str]) -> list[str]:
    """Return the names of chosen columns; arguments and errors are those of ``with_categories``."""
    if chosen is None:
        return []
    chosen = np.atleast_1d(np.asarray(chosen))
    if chosen.dtype.kind == "b":
        if len(chosen) != len(columns):
            raise ValueError(f"categorical_features: a mask of {len(chosen)} columns; X has {len(columns)}")
        return [columns[index] for index in np.flatnonzero(chosen).tolist()]
    names = []
    for each in chosen.tolist():
        if isinstance(each, int) and 0 <= each < len(columns):
            names.append(columns[each])
        elif isinstance(each, str) and each in columns:
            names.append(each)
        else:
            meant = hint(str(each), columns, [*columns], cutoff=0.6)
            raise ValueError(f"categorical_features: X has no column {each!r}; {meant}")
    return names


def _texts(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_floating(kind):
        try:
            return integer_texts(column)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"categorical_features: column {name!r} {error}; expected whole numbers, strings or booleans"
            ) from None
    if is_whole(kind):
        return column.cast(pa.string())
    if not (pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise ValueError(
            f"categorical_features: column {name!r} is {kind}; expected whole numbers, strings or booleans"
        )
    return column
