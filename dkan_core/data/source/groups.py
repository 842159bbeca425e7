"""Groups of related rows: what a model learns from some rows of a group, it knows about the group's other rows.

Where rows are split by group or by time, the shards hold each row's group number, so that rows that are held out of
the train split to choose something are held out by group.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config import PrepareConfig
from dkan_core.data.hashing import splitmix64, value_keys
from dkan_core.data.source.footer_checks import missing_error
from dkan_core.data.source.time_split import TimeBounds, time_keys
from dkan_core.utils.arrays import UInt64


def group_numbers(
    rows: pa.RecordBatch, config: PrepareConfig, bounds: TimeBounds | None, path: str
) -> npt.NDArray[np.uint8]:
    """Return the number of each row's group: a hash of ``group``, or the row's stretch of time in a split by time.

    Groups may share a number and then count as one: a byte is enough to cut groups into halves or folds.

    Args:
        rows: With the column of groups, or of times (N).
        config: Names that column, as ``has_groups`` of it says.
        bounds: Where each stretch of time begins, of a split by time.
        path: The file, for messages.

    Shape:
        - Output: ``(N,)``

    Raises:
        DataError: A group or a time is missing.
    """
    if config.group is not None:
        return group_bytes(group_keys(rows, config.group, path), config.seed)
    assert config.split_by_time is not None and bounds is not None, "the bounds are found before rows are encoded"
    return bounds.stretch_of(time_keys(rows.column(config.split_by_time), config.split_by_time, path))


def group_bytes(keys: UInt64, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return a byte for the group of each row.

    Shape:
        - Input and output: ``(N,)``
    """
    return (splitmix64(keys, seed=seed) >> np.uint64(56)).astype(np.uint8)


def group_keys(rows: pa.RecordBatch, name: str, path: str) -> UInt64:
    """Return a key of each row's group, for hashing.

    Shape:
        - Output: ``(N,)``

    Raises:
        DataError: A group is null or NaN.
    """
    group = rows.column(name)
    missing = int(pc.sum(group.is_null(nan_is_null=True)).as_py() or 0)
    if missing:
        raise missing_error(path, "group", name, missing)
    return value_keys(group)
