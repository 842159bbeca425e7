"""``row_lookup.look_up`` on CUDA in one pass.

Shape suffixes: N rows of the split, B rows of a batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dkan_core.data.hashing import GOLDEN, MASK
from dkan_core.model.kernels.fused import OPTIONS
from dkan_core.training.compute import row_keys
from dkan_core.training.compute.row_keys import KeyRule, signed

BLOCK = 256
"""Rows of a program."""


@triton.jit
def _mixed(z, SHIFT: tl.constexpr, FACTOR: tl.constexpr):
    """Return a round of the hash; the shift is one of unsigned numbers."""
    return (z ^ ((z >> SHIFT) & ((1 << (64 - SHIFT)) - 1))) * FACTOR


@triton.jit(do_not_specialize=["count", "total", "offset"])
def _look_up(
    order, position, epoch, rows, keys, count, total, offset,
    OF_ROW: tl.constexpr, SHIFT1: tl.constexpr, FACTOR1: tl.constexpr, SHIFT2: tl.constexpr, FACTOR2: tl.constexpr,
    SHIFT3: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = batch < count
    positions = tl.load(position) + batch
    found = tl.load(order + positions, inside, 0)
    tl.store(rows + batch, found, inside)
    keyed = found if OF_ROW else tl.load(epoch) * total + positions
    mixed = _mixed(_mixed(keyed + offset, SHIFT1, FACTOR1), SHIFT2, FACTOR2)
    tl.store(keys + batch, (_mixed(mixed, SHIFT3, 1) >> 32).to(tl.int32), inside)


def look_up(order_N: Tensor, position: Tensor, epoch: Tensor, count: int, rule: KeyRule) -> tuple[Tensor, Tensor]:
    """Return the same as ``row_lookup.look_up``."""
    rows_B = torch.empty(count, dtype=torch.int64, device=order_N.device)
    keys_B = torch.empty(count, dtype=torch.int32, device=order_N.device)
    offset = signed((GOLDEN * (rule.seed + 1)) & MASK)
    with torch.cuda.device_of(order_N):
        _look_up[(triton.cdiv(count, BLOCK),)](
            *(order_N, position, epoch, rows_B, keys_B, count, len(order_N), offset),
            OF_ROW=rule.of_row,
            SHIFT1=row_keys.FIRST_SHIFT,
            FACTOR1=signed(row_keys.FIRST_FACTOR),
            SHIFT2=row_keys.SECOND_SHIFT,
            FACTOR2=signed(row_keys.SECOND_FACTOR),
            SHIFT3=row_keys.THIRD_SHIFT,
            BLOCK=BLOCK,
            **OPTIONS,
        )
    return rows_B, keys_B
