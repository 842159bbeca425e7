"""The keys of rows for dropout, as a device computes them: ``data.hashing.splitmix64`` on signed integers."""

from typing import NamedTuple

from torch import Tensor

from dkan_core.data.hashing import GOLDEN, MASK

FIRST_SHIFT, FIRST_FACTOR, SECOND_SHIFT, SECOND_FACTOR, THIRD_SHIFT = 30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31
"""Constants of ``data.hashing.splitmix64``."""


class KeyRule(NamedTuple):
    """Seed and scope of the keys of rows."""

    seed: int
    of_row: bool
    """Whether keys depend only on the row, the same in every epoch, and not on its position in an epoch."""


def mix_keys(key_N: Tensor, *, seed: int = 0) -> Tensor:
    """Mix 64-bit keys on their device as ``data.hashing.splitmix64`` does; the same numbers, read as signed.

    Shape:
        - Input and output: ``(N,)`` int64

    >>> import numpy as np
    >>> import torch
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
