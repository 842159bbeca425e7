"""Summary of the columns of evaluated rows: types, values, missing ones, and their drift from the training rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.evaluation.drift.counting import DriftCounts, TrainingDistribution
from dkan_core.evaluation.drift.measures import LARGE, MODERATE, ColumnDrift, measure, psi_beyond_chance, verdict
from dkan_core.explanation.columns import EXACT_KNOTS
from dkan_core.explanation.inverse_transform import inverse_transform
from dkan_core.utils.arrays import Arrays, Int64

# Nobody reads a table of a thousand columns; those that moved the most come first.
MAX_COLUMNS = 60
# Rows to look at, fewer for wide data: the PSI then has a noise of some 0.0005, and it takes a second.
ROWS, CELLS = 20_000, 4_000_000
# Distance from a column's outermost score that is an end: values beyond the knots are read back as some of its values.
# Less than between two values of which each has 1% of the rows, so that frequent values are told apart.
END = 0.25


def rows_to_look_at(encoding: Preprocessor) -> int:
    """Return how many rows to read to measure how far the columns have moved."""
    return max(1, min(ROWS, CELLS // max(1, len(encoding.columns))))


def describe_columns(encoding: Preprocessor, sample: Arrays) -> dict[str, Any] | None:
    """Return the columns as the report shows them, those that moved the most first; None where there are no rows.

    Args:
        encoding: The model's, with the distribution of the training rows.
        sample: Encoded rows.
    """
    inputs = {name: array for name, array in sample.items() if name in ("numeric", "categorical")}
    rows = len(next(iter(inputs.values()), ()))
    if not rows:
        return None
    columns = _as_read_back(count_values(inverse_transform(inputs, encoding), encoding, "rows to describe"), encoding)
    trained = {name: counts.tolist() for name, counts in _as_read_back(encoding.counts or {}, encoding).items()}
    reference = TrainingDistribution(preprocessor=encoding.model_copy(update={"counts": trained}), scores={})
    found = measure(DriftCounts(rows=rows, columns=columns), reference)
    distinct = _distinct(encoding)
    return {
        "shown": [_row(column, distinct, trained.get(column.name), rows) for column in found.columns[:MAX_COLUMNS]],
        "hidden": max(0, len(found.columns) - MAX_COLUMNS),
        "rows": rows,
        "moderate": MODERATE,
        "large": LARGE,
    }


def _as_read_back(counts: Mapping[str, npt.ArrayLike], encoding: Preprocessor) -> dict[str, Int64]:
    """Return counts by the values that are read back from stored rows.

    Those at either end of a column are one bin, with all beyond its knots, of which rows that were added after the
    encoding was chosen may have many.
    """
    found = {name: np.asarray(each, np.int64) for name, each in counts.items()}
    for feature in encoding.numeric:
        if feature.name in found:
            scores = np.asarray(feature.scores)
            bins = np.arange(len(scores) + 2)
            bins[1 : 1 + np.searchsorted(scores, scores[0] + END, side="right")] = 1
            last = 1 + np.searchsorted(scores, scores[-1] - END)
            bins[last:] = bins[last]
            added = np.zeros_like(found[feature.name])
            np.add.at(added, bins, found[feature.name])
            found[feature.name] = added
    return found


def _distinct(encoding: Preprocessor) -> dict[str, str]:
    """Return how many different values each column had in training, as far as the encoding knows."""
    numbers = {
        feature.name: f"{len(feature.knots):,}" if len(feature.knots) <= EXACT_KNOTS else f"over {EXACT_KNOTS}"
        for feature in encoding.numeric
    }
    return numbers | {each.name: f"{len(each.vocabulary):,}" for each in encoding.category_features}


def _row(column: ColumnDrift, distinct: Mapping[str, str], trained: Sequence[int] | None, rows: int) -> dict[str, Any]:
    psi = None if trained is None else psi_beyond_chance(column, trained, rows)
    unseen = f"{column.unseen_rows:,} ({column.unseen:.2%})" if column.unseen_rows and column.unseen else ""
    return {
        "name": column.name,
        "kind": column.kind,
        "distinct": distinct[column.name],
        "missing": f"{column.missing:.2%}",
        "missing_in_training": "" if column.missing_in_training is None else f"{column.missing_in_training:.2%}",
        "psi": "" if psi is None else f"{psi:.3f}",
        "verdict": verdict(psi),
        "unseen": unseen,
    }
