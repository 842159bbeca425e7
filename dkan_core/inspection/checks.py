"""Checks of columns: a single value, unique values, a label in disguise, drift between train and valid.

Shape suffixes: N rows, L labels.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.decimals import to_float64
from dkan_core.data.encoding.column_hints import stored_as_text
from dkan_core.data.encoding.histograms import count_values, quantile_knots
from dkan_core.data.encoding.preprocessor import CategoryFeature, NumericFeature, Preprocessor, category_codes
from dkan_core.data.encoding.raw_columns import column_named
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.preparation.label_values import doubtful_zeros
from dkan_core.evaluation.drift.counting import DriftCounts, TrainingDistribution
from dkan_core.evaluation.drift.measures import LARGE, measure, psi_beyond_chance
from dkan_core.evaluation.leakage import MIN_CLASS_ROWS, SUSPECT_COLUMN
from dkan_core.evaluation.metrics import compute_metrics, positive_rates
from dkan_core.explanation.inverse_transform import UNKNOWN

# With fewer rows, checks say little: 100 random numbers all differ, and so do the shares of their bins in two samples.
MIN_ROWS = 100
UNIQUE_SHARE = 0.95
UNKNOWN_SHARE = 0.1
# Bins of a number. With more, each has too few rows, and its rate is chance.
RATE_BINS = 50

Bins = npt.NDArray[np.int64]


def find_drift(encoding: Preprocessor, train: pa.Table, valid: pa.Table) -> dict[str, float]:
    """Return the PSI of each feature between train and a sample of valid, minus its expected value by chance.

    Empty with fewer than ``MIN_ROWS`` rows of valid. Of categories, the rows of train are those that the encoding
    counted, which are more than the sample of prepared data: a category whose value occurs once in the sample may have
    a code. Data of an earlier dkan have no counts. Of numbers, they are those of the sample: numbers of prepared data
    that lie beyond the encoding's range are read back as its ends.
    """
    if len(valid) < MIN_ROWS:
        return {}
    counts = {name: rows.tolist() for name, rows in count_values(train, encoding, "train").items()}
    counts |= {name: encoding.counts[name] for name in encoding.categories if encoding.counts is not None}
    reference = TrainingDistribution(preprocessor=encoding.model_copy(update={"counts": counts}), scores={})
    found = measure(DriftCounts(rows=len(valid), columns=count_values(valid, encoding, "valid")), reference)
    return {column.name: psi_beyond_chance(column, counts[column.name], len(valid)) for column in found.columns}


def find_auc(
    encoding: Preprocessor,
    samples: Sequence[pa.Table],
    labels: Sequence[npt.NDArray[np.uint8]],
    names: Sequence[str],
) -> dict[str, float]:
    """Return the ROC AUC that each feature reaches alone on valid, by the rates of positives in train.

    With several labels, the best one for each feature counts, among those with ``MIN_CLASS_ROWS`` rows of each class in
    valid.

    Args:
        encoding: Of the features.
        samples: Of train and valid.
        labels: Of their rows, (N, L) each.
        names: Of the labels.
    """
    known = [index for index in range(len(names)) if (_classes(labels[1][:, index]) >= MIN_CLASS_ROWS).all()]
    if not known:
        return {}
    features: list[NumericFeature | CategoryFeature] = [*encoding.numeric, *encoding.category_features]
    found = {}
    for feature in features:
        bins = _bins(encoding, feature, samples)
        scores_NL = np.stack([_rates(bins, labels[0][:, index]) for index in known], axis=1)
        shown = [names[index] for index in known]
        metrics: dict[str, Any] = compute_metrics(labels[1][:, known], scores_NL.astype(np.float32), shown)
        aucs = [each["roc_auc"] for each in metrics["labels"].values() if each["roc_auc"] is not None]
        if aucs:
            found[feature.name] = float(max(aucs))
    return found


def _classes(labels_N: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return np.bincount(labels_N, minlength=2)[:2]


def _bins(encoding: Preprocessor, feature: NumericFeature | CategoryFeature, samples: Sequence[pa.Table]) -> list[Bins]:
    """Return the bin of each row: a category's code, a number's range between quantiles, or missing."""
    name = feature.name
    if isinstance(feature, CategoryFeature):
        return [category_codes(column_named(rows, name, "rows"), feature, "rows").astype(np.int64) for rows in samples]
    values = [encoding.numbers_of(rows, name, "rows") for rows in samples]
    known = values[0][~np.isnan(values[0])]
    # With few values, each has a bin: one of them may give the label away.
    few = np.unique(known)
    knots = few if len(few) <= RATE_BINS else np.array(quantile_knots(known, RATE_BINS))
    return [np.where(np.isnan(each), len(knots) + 1, np.searchsorted(knots, each)) for each in values]


def _rates(bins: Sequence[Bins], labels_N: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the rate of positives among the rows of train in the bin of each row of valid."""
    measured = labels_N != NOT_MEASURED
    size = int(max(each.max(initial=0) for each in bins)) + 1
    rates: npt.NDArray[np.float64] = positive_rates(bins[0][measured], labels_N[measured], size)[bins[1]]
    return rates


def suspicions(
    name: str,
    column: pa.ChunkedArray,
    *,
    distinct: int,
    auc: float | None,
    psi: float | None,
    is_code: bool = False,
    looks_like_code: bool = False,
) -> list[str]:
    """Return warnings about a column.

    Args:
        name: Its name.
        column: Its values in the sample of train.
        distinct: How many different ones.
        auc: Its ROC AUC alone on valid.
        psi: Between train and valid, beyond chance.
        is_code: Whether its values, though they are numbers, are known to be categories.
        looks_like_code: Whether its values are integers that ``find_codes`` has found.
    """
    present = len(column) - column.null_count
    found = []
    if not distinct:
        found.append("no value")
    # Only without missing values: a flag of 1 and missing is as informative as one of 1 and 0.
    elif distinct == 1 and len(_without_missing(column)) == len(column):
        found.append("constant")
    countable = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    if countable and present >= MIN_ROWS and distinct >= UNIQUE_SHARE * present:
        found.append("unique identifier")
    if held := "" if is_code else stored_as_text(column):
        found.append(f"{held} stored as text")
    unknown = pc.sum(pc.equal(column, UNKNOWN)).as_py() if pa.types.is_string(column.type) else None
    if unknown and unknown >= UNKNOWN_SHARE * len(column):
        found.append(f"{unknown / len(column):.0%} of the rows of train hold a value without a code")
    if auc is not None and auc >= SUSPECT_COLUMN:
        found.append(f"leakage: alone it separates the label (ROC AUC {auc:.3f} on valid)")
    if psi is not None and psi >= LARGE:
        found.append(f"valid differs from train (PSI {psi:.2f})")
    if looks_like_code:
        found.append(f"integers that look like codes: try --categorical {shlex.quote(name)}")
    return found


def label_suspicions(
    classes: Mapping[str, Mapping[str, int]], positive: str | None, others: Mapping[str, int]
) -> list[str]:
    """Return warnings about a label.

    Args:
        classes: By split, the rows that hold 0, 1 and null.
        positive: The value that counts as 1; None where the label holds 0 and 1.
        others: Its other values with their rows.
    """
    found = [] if positive is None else doubtful_zeros(positive, others)
    if lacking := [split for split, rows in classes.items() if not (rows["0"] and rows["1"])]:
        hint = "" if positive is None else f"; {positive!r}, in exactly this spelling, counts as 1, other values as 0"
        found.append(f"one class only in {', '.join(lacking)}{hint}")
    return found


def count_distinct(column: pa.ChunkedArray) -> int:
    """Return how many different values a column has, without those that are missing: null, NaN and infinity."""
    values = _without_missing(column)
    if pa.types.is_floating(values.type):
        # Adding 0 turns -0.0 into 0.0, which counts as the same value.
        values = pc.add(to_float64(values), 0.0)
    found: int = pc.count_distinct(values).as_py()
    return found


def _without_missing(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.filter(pc.is_finite(column)) if pa.types.is_floating(column.type) else column.drop_null()
