"""Pseudo-random numbers that are a pure function of a key: split, sample and shuffle do not depend on file order."""

import functools
import hashlib
import struct
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.decimals import to_float64
from dkan_core.data.source.column_types import is_bytes, is_number, is_uuid
from dkan_core.data.source.times import PER_SECOND, dates_as_timestamps, in_units, is_duration, is_time
from dkan_core.utils.arrays import UInt64

# The increment of SplitMix64: 2**64 divided by the golden ratio, made odd. This and the constants below are from the
# paper and must not change: they decide how data are split.
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
    """Return a seed for one purpose: with one seed for all, the sampled rows would come first in every shard."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest(), "little")


def content_keys(rows: pa.RecordBatch) -> UInt64:
    """Return a 64-bit key of what each row holds: the same for the same values, in whatever file and row.

    The order of the columns does not matter, nor the type or unit that holds a number or a time. Missing values are
    ignored, so that a column that is added later, empty in earlier rows, leaves their keys unchanged.

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
            numbers = to_float64(column).to_numpy(zero_copy_only=False)
            present = ~np.isnan(numbers)
            # Adding 0 turns -0.0 into 0.0, as equal numbers must have the same bits.
            column_keys = (numbers + 0.0).view(np.uint64)[present]
        else:
            present = np.asarray(column.is_valid())
            column_keys = value_keys(column.drop_null())
        keys[present] += splitmix64(column_keys, seed=salted(0, f"column {name}"))
    return keys


def value_keys(values: pa.Array) -> UInt64:
    """Return a 64-bit key of each value: the same for equal numbers and equal times, of whatever type and unit.

    Whole numbers stand for themselves; bytes, UUIDs and times are hashed, the rest as text.

    Shape:
        - Input and output: ``(N,)``, without nulls
    """
    if pa.types.is_integer(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.uint64)
    values = values.storage if is_uuid(values.type) else values
    # Arrow cannot dictionary-encode 16-bit floats.
    encoded = (values.cast(pa.float32()) if pa.types.is_float16(values.type) else values).dictionary_encode()
    indices: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    found = encoded.dictionary
    keys = _number_keys(found) if is_number(found.type) else _hashed(_bytes_of(found))
    return keys[indices]


def _number_keys(numbers: pa.Array) -> UInt64:
    """Return the key of each float or decimal: that of the 64-bit integer if it equals one, else a hash."""
    if pa.types.is_decimal(numbers.type):
        return np.array([_decimal_key(each) for each in numbers.to_pylist()], np.uint64)
    values = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    is_whole = (values == np.rint(values)) & (values >= -(2.0**63)) & (values < 2.0**64)
    wholes = np.where(is_whole, values, 0)
    keys = np.where(wholes < 0, wholes.clip(max=0).astype(np.int64).view(np.uint64), wholes.clip(0).astype(np.uint64))
    keys[~is_whole] = _hashed([_number_bytes(each) for each in values[~is_whole].tolist()])
    return keys


def _decimal_key(number: Decimal) -> int:
    whole = int(number)
    if whole != number:
        return int(_hashed([_number_bytes(float(number))])[0])
    return whole & MASK if -(2**63) <= whole < 2**64 else int(_hashed([str(whole).encode()])[0])


def _number_bytes(number: float) -> bytes:
    """Return the bytes to hash for a number that is no 64-bit integer."""
    return str(int(number)).encode() if number.is_integer() else struct.pack("<d", number)


def _bytes_of(values: pa.Array) -> list[bytes]:
    """Return the bytes to hash for each value; as binary, texts are their UTF-8 bytes."""
    if is_bytes(values.type):
        return list(values.to_pylist())
    if is_time(values.type) or is_duration(values.type):
        return [each.tobytes() for each in _seconds_and_nanoseconds(values)]
    return list(values.cast(pa.string()).cast(pa.binary()).to_pylist())


def _seconds_and_nanoseconds(times: pa.Array) -> npt.NDArray[np.int64]:
    """Return the whole seconds of each time and the nanoseconds that remain ``(N, 2)``."""
    times = dates_as_timestamps(times)
    unit = PER_SECOND[times.type.unit]
    seconds, parts = np.divmod(in_units(times).to_numpy(zero_copy_only=False), unit)
    return np.ascontiguousarray(np.stack([seconds, parts * (PER_SECOND["ns"] // unit)], axis=1).astype("<i8"))


def _hashed(values: list[bytes]) -> UInt64:
    digests = [hashlib.blake2b(each, digest_size=8).digest() for each in values]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
