"""Integer columns that look like codes: their exact values predict the label better than neighbouring numbers do.

Shape suffixes: N rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.fitting import MAX_VALUE_CODES
from dkan_core.data.encoding.preprocessor import FIRST_CODE, Preprocessor, normal_scores, quantize, value_codes
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.utils.arrays import Float64, Int64

# Mean rows per value in a sample. With fewer, the rate of a value is chance, or that of a person with several rows.
MIN_VALUE_ROWS = 8
# Weight, in rows, of a wider group's rate in that of a narrower one.
PRIOR_ROWS = 20.0
# Least decrease of the log loss, as a share of it and in standard errors. Ordinary counts and amounts reach neither.
MIN_SHARE, MIN_ERRORS = 0.005, 4.0
MIN_VALID_ROWS = 100
# Steps of a stored score.
STEPS = 256


def find_codes(
    encoding: Preprocessor, samples: Sequence[pa.Table], labels: Sequence[npt.NDArray[np.uint8]]
) -> set[str]:
    """Return the integer columns whose exact values predict a label of valid better than their encoding.

    Rates of positives in train are compared: by stored score or code of a frequent value, and by single value.

    Args:
        encoding: Of the features.
        samples: Of train and valid.
        labels: Of their rows, (N, L) each.
    """
    found = set()
    for feature in encoding.numeric:
        kind = samples[0].schema.field(feature.name).type if feature.time is None else pa.null()
        if not pa.types.is_integer(kind):
            continue
        values = [encoding.numbers_of(rows, feature.name, "rows") for rows in samples]
        known, rows = np.unique(values[0][~np.isnan(values[0])], return_counts=True)
        if len(known) <= MAX_VALUE_CODES or rows.sum() < MIN_VALUE_ROWS * len(known):
            continue
        cells = [_cells(encoding, feature.name, each) for each in values]
        indices = [_indices(known, each) for each in values]
        if any(_is_better(cells, indices, [each[:, index] for each in labels]) for index in range(labels[0].shape[1])):
            found.add(feature.name)
    return found


def _cells(encoding: Preprocessor, name: str, values_N: Float64) -> Int64:
    """Return what a model would read for numbers: the code of a frequent value, or else the stored score."""
    scored = next(feature for feature in encoding.numeric if feature.name == name)
    cells: Int64 = quantize(normal_scores(values_N, scored), "uint8").astype(np.int64)
    for feature in encoding.coded:
        if feature.kind == "value" and feature.name == name:
            codes_N = value_codes(values_N, feature)
            cells = np.where(codes_N >= FIRST_CODE, STEPS + codes_N, cells)
    return cells


def _indices(known: Float64, values_N: Float64) -> Int64:
    """Return the index of each value among those of train; all others have the last index."""
    indices = np.searchsorted(known, values_N).clip(max=len(known) - 1)
    return np.where(known[indices] == values_N, indices, len(known)).astype(np.int64)


def _is_better(cells: Sequence[Int64], indices: Sequence[Int64], labels: Sequence[npt.NDArray[np.uint8]]) -> bool:
    """Return whether rates by value predict a label of valid better than rates by cell."""
    train, valid = (each != NOT_MEASURED for each in labels)
    y_N, truth_N = labels[0][train].astype(np.float64), labels[1][valid].astype(np.float64)
    if len(truth_N) < MIN_VALID_ROWS or not 0 < y_N.sum() < len(y_N):
        return False
    mean = np.full(max(each.max(initial=0) for each in cells) + 1, y_N.mean())
    of_cells = _rates(cells[0][train], y_N, mean)
    # Each value is in one cell, whose rate is its prior.
    size = max(each.max(initial=0) for each in indices) + 1
    start = np.full(size, y_N.mean())
    start[indices[0][train]] = of_cells[cells[0][train]]
    of_values = _rates(indices[0][train], y_N, start)
    cell_N, index_N = cells[1][valid], indices[1][valid]
    is_known = np.isin(index_N, indices[0][train]) & (index_N < size - 1)
    losses_N = _log_loss(of_cells[cell_N], truth_N)
    gains_N = losses_N - _log_loss(np.where(is_known, of_values[index_N], of_cells[cell_N]), truth_N)
    error = gains_N.std() / np.sqrt(len(gains_N))
    return bool(gains_N.mean() > max(MIN_SHARE * losses_N.mean(), MIN_ERRORS * error))


def _rates(groups_N: Int64, y_N: Float64, start: Float64) -> Float64:
    """Return the rate of positives of each group, shrunk towards a prior rate."""
    rows, positives = (np.bincount(groups_N, weights, len(start)) for weights in (None, y_N))
    rates: Float64 = (positives + PRIOR_ROWS * start) / (rows + PRIOR_ROWS)
    return rates


def _log_loss(rates_N: Float64, y_N: Float64) -> Float64:
    losses: Float64 = -np.log(np.where(y_N == 1, rates_N, 1 - rates_N))
    return losses
