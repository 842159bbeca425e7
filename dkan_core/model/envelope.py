"""The monotone envelope of a curve.

Shape suffixes: C points of a curve, H curves.
"""

from typing import Any

import torch
from torch import Tensor


def envelope(curve_CH: Tensor, sign: int) -> Tensor:
    """Return the middle between the least monotone function above a curve and the greatest one below it.

    A curve that rises (``sign`` 1) or falls (-1) stays as it is.

    >>> envelope(torch.tensor([[0.0], [2.0], [1.0], [3.0]]), 1).flatten().tolist()
    [0.0, 1.5, 1.5, 3.0]
    """
    rising_CH = sign * curve_CH
    below_CH = -_greatest_so_far(-rising_CH.flip(0)).flip(0)
    return sign * (_greatest_so_far(rising_CH) + below_CH) / 2


class _GreatestSoFar(torch.autograd.Function):
    """``cummax`` over the first dimension, whose own gradient CUDA sums in any order."""

    @staticmethod
    def forward(ctx: Any, values_CH: Tensor) -> Tensor:
        greatest_CH, index_CH = values_CH.cummax(dim=0)
        ctx.save_for_backward(index_CH)
        return greatest_CH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (index_CH,) = ctx.saved_tensors
        if grads[0].is_cuda:
            return sum_in_order(grads[0], index_CH)
        return torch.zeros_like(grads[0]).scatter_add_(0, index_CH, grads[0])


def _greatest_so_far(values_CH: Tensor) -> Tensor:
    greatest_CH: Tensor = _GreatestSoFar.apply(values_CH)
    return greatest_CH


def sum_in_order(values_CH: Tensor, index_CH: Tensor) -> Tensor:
    """Return the sums that ``scatter_add`` over the first dimension gives, without atomics: always the same bits.

    >>> sum_in_order(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0], [0], [2]])).flatten().tolist()
    [3.0, 0.0, 3.0]
    """
    target_C11 = torch.arange(len(index_CH), device=index_CH.device)[:, None, None]
    return torch.where(index_CH == target_C11, values_CH, 0).sum(dim=1)
