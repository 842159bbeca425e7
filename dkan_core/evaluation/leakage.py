"""Results that are too good to be true: a column that alone separates the label, such as one set after the event.

Shape suffixes: N rows, S codes of the longest row, C codes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation.metrics import compute_metrics, positive_rates
from dkan_core.explanation.columns import source_columns, sparse_codes, sparse_columns
from dkan_core.utils.arrays import Array, Arrays

# From this ROC AUC on, a model is checked, and a column that alone reaches it is named. Honest columns rarely do: the
# best one of the breast cancer data (UCI 17), whose classes models nearly separate, has .987.
SUSPECT_MODEL = SUSPECT_COLUMN = 0.995
# With fewer rows of a class, some column separates them by chance.
MIN_CLASS_ROWS = 10
# Most bins of a column's values by rank, and the mean number of rows that each has at least.
MAX_BINS, BIN_ROWS = 256, 16


def leakage_warnings(preprocessor: Preprocessor, sample: Arrays, metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each label that one column alone separates."""
    found = []
    for index, (label, values) in enumerate(metrics["labels"].items()):
        if (values["roc_auc"] or 0.0) < SUSPECT_MODEL or "labels" not in sample:
            continue
        name, area = _best_column(preprocessor, sample, sample["labels"][:, index])
        if area >= SUSPECT_COLUMN:
            precision = f"average precision of {label!r} is {values['average_precision']:.4f}"
            alone = f"column {name!r} alone predicts it (ROC AUC {area:.3f})"
            found.append(f"{precision}: {alone}; is it known before the event?")
    return found


def _best_column(preprocessor: Preprocessor, sample: Arrays, labels_N: Array) -> tuple[str, float]:
    """Return the column that best predicts rows held out from fitting, and its ROC AUC; 0 without a column."""
    rows = labels_N != NOT_MEASURED
    if min(np.bincount(labels_N[rows], minlength=2)[:2]) < MIN_CLASS_ROWS:
        return "", 0.0
    areas = {
        column.name: max(_area(sample[name][rows, index], labels_N[rows]) for name, index in column.indices)
        for column in source_columns(preprocessor)
    }
    for column in sparse_columns(preprocessor):
        areas[column.name] = _area_of_ids(sparse_codes(column, sample["sparse"][rows]), labels_N[rows])
    return max(areas.items(), key=lambda item: item[1], default=("", 0.0))


def _cells(values_N: Array) -> Array:
    """Return a small number for each value; neighbours share one where there are many."""
    distinct, cells_N = np.unique(values_N, return_inverse=True)
    bins = max(2, min(MAX_BINS, len(values_N) // BIN_ROWS))
    return cells_N if len(distinct) <= bins else cells_N * bins // len(distinct)


def _area(values_N: Array, labels_N: Array) -> float:
    """Return the ROC AUC of each cell's rate of positives, learned on one half of the rows, in the other half."""
    cells_N = _cells(values_N)
    half_N = np.arange(len(labels_N)) % 2 == 0
    rate_C = positive_rates(cells_N[half_N], labels_N[half_N], int(cells_N.max()) + 1)
    others = labels_N[~half_N][:, None], rate_C[cells_N[~half_N]][:, None]
    # Also the ROC AUC of the values' own order, which is exact at a bound inside a bin.
    order_N = np.nan_to_num(values_N.astype(np.float64))
    areas = [_roc_auc(*others), _roc_auc(labels_N[:, None], order_N[:, None])]
    return max(areas[0], areas[1], 1 - areas[1])


def _area_of_ids(codes_NS: Array, labels_N: Array) -> float:
    """Return the highest ROC AUC of a single ID, by whether rows have it."""
    size = int(codes_NS.max(initial=0)) + 1
    classes = [codes_NS[labels_N == label] for label in (0, 1)]
    negative_C, positive_C = (np.bincount(codes.ravel(), minlength=size)[1:] / len(codes) for codes in classes)
    return 0.5 + float(np.abs(positive_C - negative_C).max(initial=0.0)) / 2


def _roc_auc(labels_N1: Array, scores_N1: Array) -> float:
    area: float | None = compute_metrics(labels_N1, scores_N1, ["column"])["roc_auc"]
    return 0.5 if area is None else area
