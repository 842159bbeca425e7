"""Weights of columns whose rows name a few of many ids: only the weights of a row's ids are read and summed.

Shape suffixes: B rows, S codes of the longest row, K codes of some rows, V codes, H outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.data.encoding.sparse import EMPTY
from dkan_core.model.kernels import KernelModule, can_sum_tables
from dkan_core.model.kernels.native import sum_table_rows
from dkan_core.model.kernels.native_input import adds_in_place, kept_gradients

# Rows whose gradients are added at once: each is held once for every code of its row.
ADDED_ROWS = 256


class SparseWeights(KernelModule):
    """A vector for every code of the sparse columns, summed over those that a row has.

    Args:
        rows: Number of vectors: that of code 0, which stands for none and stays 0, and one for each code.
        width: Numbers of a vector, 0 at the start.

    Shape:
        - Input: ``(B, S)`` int32, 0 where a row has fewer codes
        - Output: ``(B, width)``

    >>> weights = SparseWeights(3, 2)
    >>> _ = weights.weight.data.copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]))
    >>> weights(torch.tensor([[1, 2], [2, 0]], dtype=torch.int32)).tolist()
    [[4.0, 6.0], [3.0, 4.0]]
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        # Zero at the start, as one-hot weights are.
        self.weight = nn.Parameter(torch.zeros(rows, width))

    def forward(self, codes_BS: Tensor) -> Tensor:
        if self.weight.device.type == "cpu":
            summed_BH: Tensor = _SumOnCpu.apply(codes_BS, self.weight, can_sum_tables(self.weight, self.kernel))
            return summed_BH
        return _sum(codes_BS, self.weight)


def _sum(codes_BS: Tensor, weight_VH: Tensor) -> Tensor:
    return F.embedding_bag(codes_BS, weight_VH, mode="sum", padding_idx=EMPTY)


class _SumOnCpu(torch.autograd.Function):
    """The sum; its gradient is added directly to the kept one: a table of it would be as large as the weights."""

    @staticmethod
    def forward(ctx: Any, codes_BS: Tensor, weight_VH: Tensor, is_native: bool) -> Tensor:
        ctx.save_for_backward(codes_BS, weight_VH)
        ctx.is_native = is_native
        return sum_table_rows(codes_BS, weight_VH, empty=EMPTY) if is_native else _sum(codes_BS, weight_VH)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        codes_BS, weight_VH = ctx.saved_tensors
        kept = kept_gradients([weight_VH]) if adds_in_place() else None
        kept_VH = kept[0] if kept else None
        gradient_VH = torch.zeros_like(weight_VH) if kept_VH is None else kept_VH
        _add_gradient(codes_BS, grads[0], gradient_VH, is_native=ctx.is_native)
        return None, gradient_VH if kept_VH is None else None, None


def _add_gradient(codes_BS: Tensor, grad_BH: Tensor, gradient_VH: Tensor, *, is_native: bool) -> None:
    """Add the gradient of the weights, given that of the sums, to another."""
    if is_native:
        rows = len(gradient_VH)
        sum_table_rows(codes_BS, None, grad_BH.float(), table_rows=rows, empty=EMPTY, into_VH=gradient_VH)
        return
    for codes, part_BH in zip(codes_BS.split(ADDED_ROWS), grad_BH.split(ADDED_ROWS), strict=True):
        row_K, index_K = (codes != EMPTY).nonzero(as_tuple=True)
        gradient_VH.index_add_(0, codes[row_K, index_K], part_BH[row_K].to(gradient_VH.dtype))
