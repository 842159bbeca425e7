"""Pseudo-random numbers that are a pure function of a key: split, sample and shuffle do not depend on file order."""

import functools
import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.source.column_types import is_bytes, is_number, is_uuid

UInt64 = npt.NDArray[np.uint64]

# The increment of SplitMix64: 2**64 divided by the golden ratio, made odd. These and the constants below are the
# paper's; data that were split with them stay split as they are.
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def splitmix64(key: UInt64, *, seed: int = 0) -> UInt64:
    """Mix 64-bit keys, a bijection for a fixed seed (Steele, Lea & Flood 2014, "Fast splittable pseudorandom numbers").

    Shape:
        - Input and output: ``(N,)``

    >>> splitmix64(np.arange(2, dtype=np.uint64))
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        z = key + np.uint64((GOLDEN * (seed + 1)) & MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@functools.lru_cache(maxsize=64)
def salted(seed: int, purpose: str) -> int:
    """Return a seed of its own for each purpose: with one for all, the sampled rows would come first in every shard."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest(), "little")


def content_keys(rows: pa.RecordBatch) -> UInt64:
    """Return a 64-bit key of what each row holds: the same for the same values, in whatever file and place.

    The order of the columns does not matter, nor whether a number is stored as an integer or a float. What is missing
    counts for nothing, so that a column that is added later, empty in earlier rows, leaves their keys as they are.

    Shape:
        - Output: ``(N,)``

    >>> rows = pa.record_batch({"a": [1, 2, 1], "b": ["x", None, "x"]})
    >>> first, second, third = content_keys(rows).tolist()
    >>> first == third != second
    True
    """
    keys = np.zeros(rows.num_rows, np.uint64)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if is_number(column.type):
            numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            present = ~np.isnan(numbers)
            # The sum makes of -0.0, which equals 0.0, the same bits.
            column_keys = (numbers + 0.0).view(np.uint64)[present]
        else:
            present = np.asarray(column.is_valid())
            column_keys = value_keys(column.drop_null())
        keys[present] += splitmix64(column_keys, seed=salted(0, f"column {name}"))
    return keys


def value_keys(values: pa.Array) -> UInt64:
    """Return a 64-bit key of each value: integers stand for themselves; bytes and UUIDs are hashed, the rest as text.

    Shape:
        - Input and output: ``(N,)``, without nulls
    """
    if pa.types.is_integer(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.uint64)
    encoded = (values.storage if is_uuid(values.type) else values).dictionary_encode()
    found = encoded.dictionary
    # As binary, texts are their UTF-8 bytes.
    hashed = found if is_bytes(found.type) else found.cast(pa.string()).cast(pa.binary())
    digests = [hashlib.blake2b(each, digest_size=8).digest() for each in hashed.to_pylist()]
    keys = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
    indices: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    return keys[indices]
