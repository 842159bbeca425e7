"""Which rows a batch has, by the order of an epoch on the device, and their keys for dropout.

Shape suffixes: N rows of the split, B rows of a batch.
"""

import functools

import torch
from torch import Tensor

from dkan_core.model.kernels.verified import is_right
from dkan_core.training.compute.row_keys import KeyRule, mix_keys


def look_up(order_N: Tensor, position: Tensor, epoch: Tensor, count: int, rule: KeyRule) -> tuple[Tensor, Tensor]:
    """Return the rows at consecutive positions of an epoch, and their keys.

    Args:
        order_N: Rows in the order of the epoch, int64.
        position: Position of the first row, ``(1,)`` int64.
        epoch: Which epoch, ``(1,)`` int64.
        count: How many rows, B.
        rule: Seed and scope of the keys.

    Shape:
        - Output: ``(B,)`` int64 and ``(B,)`` int32
    """
    if order_N.is_cuda and count and fused_is_right(order_N.device):
        from dkan_core.training.compute import fused_lookup

        return fused_lookup.look_up(order_N, position, epoch, count, rule)
    return plain_look_up(order_N, position, epoch, count, rule)


def plain_look_up(order_N: Tensor, position: Tensor, epoch: Tensor, count: int, rule: KeyRule) -> tuple[Tensor, Tensor]:
    """Return the same as ``look_up`` by separate operations of torch."""
    positions_B = position + torch.arange(count, device=order_N.device)
    rows_B = order_N[positions_B]
    keyed_B = rows_B if rule.of_row else epoch * len(order_N) + positions_B
    return rows_B, (mix_keys(keyed_B, seed=rule.seed) >> 32).to(torch.int32)


@functools.cache
def fused_is_right(device: torch.device) -> bool:
    """Return whether the fused lookup gives the same bits; a warning says so where it does not."""

    def errors() -> list[float]:
        from dkan_core.training.compute import fused_lookup

        order_N = torch.arange(3000, device=device).flip(0)
        position, epoch = torch.tensor([7], device=device), torch.tensor([1 << 40], device=device)
        wrong = []
        for rule in (KeyRule(3, of_row=False), KeyRule(1 << 63, of_row=True)):
            arguments = (order_N, position, epoch, 2500, rule)
            pairs = zip(fused_lookup.look_up(*arguments), plain_look_up(*arguments), strict=True)
            wrong += [float((found != expected).sum()) for found, expected in pairs]
        return wrong

    return is_right("the fused lookup of rows", device, errors, 0.0)
