"""Rows in memory, written as shards."""

import numpy as np

from dkan_core.data.format.shard_writer import KEY, ShardWriter
from dkan_core.utils.arrays import Arrays, UInt64


def add_rows(writer: ShardWriter, keys: UInt64, arrays: Arrays) -> None:
    """Take rows; ``keys`` (N,) decide where each one goes."""
    records = np.empty(len(keys), dtype=writer.record)
    records[KEY] = keys
    for name, array in arrays.items():
        records[name] = array
    shard = writer.shard_of(keys)
    writer.append(records[np.argsort(shard, kind="stable")], np.bincount(shard, minlength=writer.count))
