"""Which rows a batch has, by the order of an epoch on the device, and their keys for dropout.

Shape suffixes: N rows of the split, B rows of a batch.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from dkan_core.data.hashing import GOLDEN, MASK
from dkan_core.model.kernels.verified import is_right

FIRST_SHIFT, FIRST_FACTOR, SECOND_SHIFT, SECOND_FACTOR, THIRD_SHIFT = 30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31
"""Of ``data.hashing.splitmix64``."""


class KeyRule(NamedTuple):
    """What a row's key depends on."""

    seed: int
    of_row: bool
    """Whether on the row alone, the same in every epoch, and not on its place in an epoch."""


def look_up(order_N: Tensor, place: Tensor, epoch: Tensor, count: int, rule: KeyRule) -> tuple[Tensor, Tensor]:
    """Return the rows at the places of an epoch that follow one another, and their keys.

    Args:
        order_N: Rows in the order of the epoch, int64.
        place: Of the first row, ``(1,)`` int64.
        epoch: Which epoch, ``(1,)`` int64.
        count: How many rows, B.
        rule: Of the keys.

    Shape:
        - Output: ``(B,)`` int64 and ``(B,)`` int32
    """
    if order_N.is_cuda and count and fused_is_right(order_N.device):
        from dkan_core.training.compute import fused_lookup

        return fused_lookup.look_up(order_N, place, epoch, count, rule)
    return plain_look_up(order_N, place, epoch, count, rule)


def plain_look_up(order_N: Tensor, place: Tensor, epoch: Tensor, count: int, rule: KeyRule) -> tuple[Tensor, Tensor]:
    """Return the same as ``look_up`` by one operation of torch after the other."""
    places_B = place + torch.arange(count, device=order_N.device)
    rows_B = order_N[places_B]
    keyed_B = rows_B if rule.of_row else epoch * len(order_N) + places_B
    return rows_B, (mix_keys(keyed_B, seed=rule.seed) >> 32).to(torch.int32)


@functools.cache
def fused_is_right(device: torch.device) -> bool:
    """Tell whether the fused lookup gives the same bits; a warning says so where it does not."""

    def errors() -> list[float]:
        from dkan_core.training.compute import fused_lookup

        order_N = torch.arange(3000, device=device).flip(0)
        place, epoch = torch.tensor([7], device=device), torch.tensor([1 << 40], device=device)
        wrong = []
        for rule in (KeyRule(3, of_row=False), KeyRule(1 << 63, of_row=True)):
            arguments = (order_N, place, epoch, 2500, rule)
            pairs = zip(fused_lookup.look_up(*arguments), plain_look_up(*arguments), strict=True)
            wrong += [float((found != expected).sum()) for found, expected in pairs]
        return wrong

    return is_right("the fused lookup of rows", device, errors, 0.0)


def mix_keys(key_N: Tensor, *, seed: int = 0) -> Tensor:
    """Mix 64-bit keys on their device as ``data.hashing.splitmix64`` does; the same numbers, read as signed.

    Shape:
        - Input and output: ``(N,)`` int64

    >>> import numpy as np
    >>> mix_keys(torch.arange(2)).numpy().view(np.uint64)
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """
    z_N = key_N + signed((GOLDEN * (seed + 1)) & MASK)
    for shift, factor in ((FIRST_SHIFT, FIRST_FACTOR), (SECOND_SHIFT, SECOND_FACTOR)):
        z_N = (z_N ^ _shifted(z_N, shift)) * signed(factor)
    return z_N ^ _shifted(z_N, THIRD_SHIFT)


def signed(number: int) -> int:
    """Return the signed integer of the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def _shifted(z_N: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned: torch copies the sign bit, which is masked away here."""
    return (z_N >> bits) & ((1 << (64 - bits)) - 1)
