"""Metrics of slices (the rows of one level of a column), to show where a model is weak.

Shape suffixes: N rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dkan_core.data.encoding.preprocessor import FIRST_CODE
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import ConfigError
from dkan_core.evaluation.intervals import KEYS, around, metric_intervals
from dkan_core.evaluation.labelled_rows import EvaluationData
from dkan_core.evaluation.metrics import compute_metrics
from dkan_core.explanation.columns import Column, read_codes, read_values, source_columns
from dkan_core.explanation.grid import written_value
from dkan_core.explanation.inverse_transform import RARE
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.arrays import Array, Arrays
from dkan_core.utils.messages import hint

# A category has its most frequent levels; a number has its values, if there are no more than that, or ranges of equal
# count.
MAX_LEVELS, RANGES = 12, 5
# How many of the most important columns are taken by default.
TOP_COLUMNS = 3
MISSING_LEVEL, OTHERS = "missing", "others"

Levels = list[tuple[str, Array]]
"""Name of each level, and a mask of its rows (N,)."""


def find_columns(saved: SavedModel, names: Sequence[str]) -> list[Column]:
    """Return the model's columns of these names.

    Raises:
        ConfigError: It has no such column, or one of ids.
    """
    ids = {feature.name for feature in saved.preprocessor.sparse}
    known = {column.name: column for column in source_columns(saved.preprocessor)}
    for name in names:
        if name in ids:
            raise ConfigError(f"slice {name!r}: holds IDs, which have no slices; name another column")
        if name not in known:
            raise ConfigError(
                f"slice {name!r}: is not a column of the model; {hint(name, known, [*known])}; dkan predict --column "
                "writes columns that the model does not read next to its scores"
            )
    return [known[name] for name in dict.fromkeys(names)]


def slice_metrics(
    saved: SavedModel,
    data: EvaluationData,
    columns: Sequence[Column],
    labels_N: Array,
    scores_N: Array,
    weight_N: Array | None,
) -> dict[str, list[dict[str, Any]]]:
    """Return the metrics of each level of some columns; the rows are read once more.

    Args:
        saved: The model.
        data: The rows.
        columns: Those to slice by.
        labels_N: Of one label: 0, 1 or 255 (not measured).
        scores_N: Its probabilities.
        weight_N: Weights of the rows. None: every row counts alike.

    Returns:
        By column, a list of levels: ``level``, ``rows``, ``prevalence``, ``mean_probability``, ``average_precision``
        and its interval, and ``roc_auc``.
    """
    if not columns:
        return {}
    values = _read(saved, data, columns)
    if weight_N is not None:
        # Rows of weight 0 count for nothing.
        kept_N = weight_N > 0
        labels_N, scores_N, weight_N = labels_N[kept_N], scores_N[kept_N], weight_N[kept_N]
        values = [values_N[kept_N] for values_N in values]
    measured_N = labels_N != NOT_MEASURED
    return {
        column.name: [
            _metrics(level, labels_N[rows_N], scores_N[rows_N], None if weight_N is None else weight_N[rows_N])
            for level, found_N in _levels(column, values_N)
            if (rows_N := found_N & measured_N).any()
        ]
        for column, values_N in zip(columns, values, strict=True)
    }


def _read(saved: SavedModel, data: EvaluationData, columns: Sequence[Column]) -> list[Array]:
    """Return the values or codes of each column, of all rows."""

    def read(column: Column, arrays: Arrays) -> Array:
        return read_codes(column, arrays) if column.kind == "category" else read_values(column, arrays)

    parts = [[read(column, arrays) for column in columns] for arrays in data.batches(saved.preprocessor)]
    return [np.concatenate(found) for found in zip(*parts, strict=True)]


def _levels(column: Column, values_N: Array) -> Levels:
    return _categories(column, values_N) if column.kind == "category" else _ranges(column, values_N)


def _categories(column: Column, codes_N: Array) -> Levels:
    """Return the most frequent categories, and the rest as one level."""
    assert column.coded is not None
    names = [RARE, MISSING_LEVEL, *map(_category, column.coded.vocabulary)]
    assert names.index(MISSING_LEVEL) + 1 == FIRST_CODE
    # Codes beyond the vocabulary are hash buckets, which rare values share.
    codes_N = np.where(codes_N < len(names), codes_N, 0)
    frequent = np.argsort(-np.bincount(codes_N, minlength=len(names)), kind="stable")[:MAX_LEVELS]
    levels = [(names[code], codes_N == code) for code in frequent]
    return [*levels, (OTHERS, ~np.isin(codes_N, frequent))]


def _category(value: object) -> str:
    """Return the name of a category's level, in quotes where it is empty or equals the name of other rows' level.

    >>> _category("north"), _category("missing"), _category("")
    ('north', "'missing'", "''")
    """
    name = str(value)
    return repr(name) if name in ("", MISSING_LEVEL, RARE, OTHERS) else name


def _ranges(column: Column, values_N: Array) -> Levels:
    """Return ranges of about equal count, and the missing values as a level of their own."""
    missing_N = np.isnan(values_N)
    present = np.sort(values_N[~missing_N])
    edges = _edges(present)
    bin_N = np.searchsorted(edges, values_N, side="right") - 1
    rows = [(bin_N == each) & ~missing_N for each in range(len(edges))]
    ends = [(float(low), float(values_N[rows_N].max())) for low, rows_N in zip(edges, rows, strict=True)]
    return [*zip(_range_names(column, ends), rows, strict=True), (MISSING_LEVEL, missing_N)]


def _range_names(column: Column, ends: Sequence[tuple[float, float]]) -> list[str]:
    if column.is_calendar:
        return [_range_name(*(written_value(column, end) for end in each)) for each in ends]
    return _written_ranges(ends)


def _written_ranges(ends: Sequence[tuple[float, float]]) -> list[str]:
    """Write ranges of numbers, with six digits, or as many more as tell them apart.

    >>> _written_ranges([(0.0, 0.0), (1.0, 2.5)]), _written_ranges([(1.2345671, 1.2345672), (1.2345673, 20200301.0)])
    (['0', '1 to 2.5'], ['1.23457', '1.23457 to 20200301'])
    """
    names: list[str] = []
    for digits in range(6, 18):
        names = [_range_name(*(_written(end, digits) for end in each)) for each in ends]
        if len({*names}) == len(names):
            break
    return names


def _written(value: float, digits: int) -> str:
    return f"{value + 0.0:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:.{digits}g}"


def _range_name(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _edges(present_K: Array) -> Array:
    """Return where ranges of sorted values begin: few values have one each, others ranges of about as many rows.

    Ranges begin at values, so that equal values are in one range.

    >>> _edges(np.array([0, 0, 0, 1, 2])).tolist(), _edges(np.arange(100)).tolist()
    ([0, 1, 2], [0, 20, 40, 60, 80])
    """
    values = np.unique(present_K)
    if len(values) <= MAX_LEVELS:
        return values
    starts = present_K[np.arange(RANGES) * len(present_K) // RANGES]
    # A value of many rows, often zero, has a range of its own: it would hide the values above it.
    shared = np.unique(starts[1:][np.diff(starts) == 0])
    after = np.searchsorted(present_K, shared, side="right")
    return np.unique(np.concatenate([starts, present_K[after[after < len(present_K)]]]))


def _metrics(level: str, labels_N: Array, scores_N: Array, weight_N: Array | None) -> dict[str, Any]:
    found = compute_metrics(labels_N[:, None], scores_N[:, None], ["label"], weight_N)
    interval = metric_intervals(labels_N, scores_N, weight_N)[KEYS.index("average_precision")]
    return {
        "level": level,
        "rows": len(labels_N),
        "prevalence": found["prevalence"],
        "mean_probability": float(np.average(scores_N, weights=weight_N)) if found["prevalence"] is not None else None,
        "average_precision": found["average_precision"],
        "average_precision_interval": around(found["average_precision"], interval, low=0.0),
        "roc_auc": found["roc_auc"],
    }
