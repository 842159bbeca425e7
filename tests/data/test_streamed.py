"""Safetensors files written row by row."""

import hashlib
import io

import numpy as np
import pytest
from safetensors.numpy import save

from dkan_core.data.format.integrity import BLOCK_BYTES, HashingFile, block_hashes
from dkan_core.data.format.shard_writer import order_of_keys
from dkan_core.data.format.streamed import chunks_in_order, row_layout, safetensors_header
from tests.native import needs_native

LAYOUT = {"numeric": ((3,), "|u1"), "labels": ((2,), "|u1"), "categorical": ((2,), "<i4"), "weight": ((), "<f4")}


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_a_streamed_file_is_what_the_library_saves(rows: int) -> None:
    records = np.zeros(rows, [("key", "<u8"), *((name, dtype, shape) for name, (shape, dtype) in LAYOUT.items())])
    records.view(np.uint8)[:] = np.random.default_rng(rows).integers(256, size=records.nbytes, dtype=np.uint8)
    order = np.random.default_rng(0).permutation(rows)

    assert row_layout(records.dtype, without="key") == LAYOUT
    header, names = safetensors_header(LAYOUT, rows)
    streamed = header + b"".join(
        chunk.tobytes() for name in names for chunk in chunks_in_order(records, order, name, 7)
    )

    assert streamed == save({name: records[name][order] for name in LAYOUT})


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("piece", [1000, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_hashes_of_a_file_written_in_pieces_are_those_of_the_whole(size: int, piece: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    file = io.BytesIO()
    hashing = HashingFile(file)
    for start in range(0, size, piece):
        hashing.write(memoryview(content)[start : start + piece])

    assert file.getvalue() == content
    assert (hashing.size, hashing.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert hashing.blocks() == tuple(block_hashes(io.BytesIO(content)))


@needs_native
@pytest.mark.parametrize("spread", [1 << 63, 1 << 20, 3])
def test_order_of_keys_is_that_of_a_sort(spread: int) -> None:
    rng = np.random.default_rng(0)
    # Mostly hashes; a few that lie close together share a bucket.
    keys = np.unique(np.r_[rng.integers(0, 1 << 63, 3000), 5 + rng.integers(0, spread, 500)]).astype(np.uint64)
    records = np.zeros(len(keys), [("key", "<u8"), ("numeric", "u1", 3)])
    records["key"] = rng.permutation(keys)
    assert order_of_keys(records["key"]).tolist() == np.argsort(records["key"]).tolist()
    assert order_of_keys(records["key"][:1]).tolist() == [0]
    assert len(order_of_keys(records["key"][:0])) == 0
