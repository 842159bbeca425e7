"""Which split each row belongs to: by a column, by the hash of a group, or by the hash of its row number."""

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config import PrepareConfig
from dkan_core.data.hashing import UInt64, splitmix64, value_keys
from dkan_core.errors import DataError

SPLITS = ("train", "valid", "test")


def assign_splits(batch: pa.RecordBatch, row_ids: UInt64, config: PrepareConfig, path: str) -> npt.NDArray[np.int8]:
    """Return the index in ``SPLITS`` of each row.

    Shape:
        - Output: ``(N,)``

    Raises:
        DataError: A group is null, or the split column holds another value than train, valid and test.
    """
    if config.split_column is not None:
        return _by_column(batch.column(config.split_column), config.split_column, path)
    keys = row_ids
    if config.group is not None:
        group = batch.column(config.group)
        if group.null_count:
            raise DataError(f"{path}: group column {config.group!r} is null in {group.null_count} rows")
        keys = value_keys(group)
    percent = config.split_percent
    unit = math.gcd(*percent)
    bounds = np.cumsum(percent)[:2] // unit
    bucket = splitmix64(keys, seed=config.seed) % np.uint64(100 // unit)
    return np.searchsorted(bounds, bucket.astype(np.int64), side="right").astype(np.int8)


def _by_column(column: pa.Array, name: str, path: str) -> npt.NDArray[np.int8]:
    index = pc.index_in(column.cast(pa.string()), value_set=pa.array(SPLITS))
    if index.null_count:
        wrong = pc.value_counts(column.filter(pc.is_null(index))).to_pylist()[:5]
        seen = ", ".join(f"{entry['values']!r} ({entry['counts']} rows)" for entry in wrong)
        raise DataError(f"{path}: split column {name!r} must hold train, valid or test; found {seen}")
    return np.asarray(index.to_numpy()).astype(np.int8)
