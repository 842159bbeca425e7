"""How often the values of each feature column occur: histograms by the encoding's own knots and codes.

Counts of parts of the rows add up to those of the whole, so that many processes can count.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.encoding.column_threads import map_columns
from dkan_core.data.encoding.preprocessor import (
    CategoryFeature,
    NumericFeature,
    Preprocessor,
    category_codes,
)
from dkan_core.data.encoding.raw_columns import column_named, numbers
from dkan_core.utils.arrays import Int64


def count_values(rows: pa.RecordBatch | pa.Table, preprocessor: Preprocessor, where: str) -> dict[str, Int64]:
    """Count the rows of each feature column by the value they hold.

    Args:
        rows: At least the columns that the preprocessor reads.
        preprocessor: Its knots and vocabularies are the bins.
        where: The rows, as messages should call them.

    Returns:
        For a numeric column the rows that are missing, those up to and including each knot, and those above the last;
        for a category those that are unseen, those that are missing, and those of each value of the vocabulary.

    Raises:
        DataError: A column is missing or of another kind than in training.
    """

    def count_numeric(feature: NumericFeature) -> Int64:
        return count_up_to(numbers(rows, feature.name, where, feature.time), feature.knots)

    def count_category(feature: CategoryFeature) -> Int64:
        codes = category_codes(column_named(rows, feature.name, where), feature, where)
        return np.bincount(codes, minlength=feature.cardinality)

    numeric, categories = preprocessor.numeric, preprocessor.category_features
    names = [*(feature.name for feature in numeric), *(feature.name for feature in categories)]
    counted = [*map_columns(count_numeric, numeric), *map_columns(count_category, categories)]
    return dict(zip(names, counted, strict=True))


def hashed_shares(preprocessor: Preprocessor) -> dict[str, float]:
    """Return by column which share of the sample's rows holds a value that has a code by its hash alone."""
    shares = {}
    for feature in preprocessor.category_features:
        if feature.buckets and preprocessor.counts is not None:
            counts = preprocessor.counts[feature.name]
            shares[feature.name] = round(sum(counts[-feature.buckets :]) / max(1, sum(counts)), 6)
    return shares


def count_up_to(values: npt.NDArray[np.floating], knots: list[float]) -> Int64:
    """Count values: NaN, up to and including each of the rising knots, and above the last one.

    Shape:
        - Output: ``(len(knots) + 2,)``

    >>> count_up_to(np.array([0.5, 1.0, 1.5, np.nan, 9.0]), [1.0, 2.0]).tolist()
    [1, 2, 1, 1]
    """
    # Index 0 is for missing values; NaN is sorted behind all knots and moved there.
    bins = np.searchsorted(np.asarray(knots, dtype=np.float64), values) + 1
    bins[np.isnan(values)] = 0
    return np.bincount(bins, minlength=len(knots) + 2)


def quantile_knots(values: npt.NDArray[np.floating], bins: int = 100) -> list[float]:
    """Return values that cut others into bins of about equal count; fewer where values repeat.

    >>> quantile_knots(np.arange(8.0), bins=4)
    [1.0, 3.0, 5.0]
    """
    ranks = np.arange(1, bins) * len(values) // bins
    return np.unique(np.sort(values)[np.maximum(ranks - 1, 0)]).astype(np.float64).tolist() if len(values) else []
