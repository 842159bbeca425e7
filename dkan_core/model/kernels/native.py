"""Backend for CPUs: the native extension's passes around torch's matrix products, and its sums of table rows.

Each is an operation of ``torch.library``, so that autograd, ``torch.compile`` and fake tensors know it: registered one
by one, since ``torch.library.custom_op`` imports all of torch's compiler at its first call, which takes seconds. All
numbers are float32; what the passes compute does not depend on the number of threads.

Shape suffixes: B rows, I inputs, O outputs, G centers, K = I * G, T indices of a row, V rows of a table, H its columns.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dkan_core.model.kernels import recompute
from dkan_core.native.library import (
    MAX_CENTERS,
    BasisArguments,
    TableArguments,
    native_library,
    require_library,
)

TILE_BYTES = 1 << 19
"""Of the basis, at a time: a matrix product then reads it from the second-level cache of a core."""


OPERATIONS = torch.library.Library("dkan", "DEF")
# Inside it, an operation of this module is computed, and not differentiated again.
BelowAutograd = torch._C._AutoDispatchBelowAutograd


def register(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operation, which a function computes on the CPU; another one returns what it does in shape."""
    name = OPERATIONS.define(schema)
    OPERATIONS.impl(name, compute, "CPU")
    torch.library.register_fake(f"dkan::{name}", fake, lib=OPERATIONS)


def can_compute(*tensors: Tensor) -> bool:
    """Return whether the extension is built and takes these: float32 on the CPU, and no autocast to another type."""
    usual = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return usual and not torch.is_autocast_enabled("cpu") and native_library() is not None


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``; what the extension does not take, ``recompute`` computes.

    Shape:
        - x_BI: ``(*, B, I)``; weight_OK: ``(*, O, I * G)``; centers_G: ``(G,)``; * for networks in parallel
        - Output: ``(*, B, O)``
    """
    if not can_compute(x_BI, weight_OK) or len(centers_G) > MAX_CENTERS:
        return recompute.radial_linear(x_BI, weight_OK, centers_G, width)
    out_BO: Tensor = torch.ops.dkan.radial_linear(x_BI, weight_OK, centers_G, width)
    return out_BO


def basis(x: Tensor, centers_G: Tensor, width: float, gradient: Tensor | None = None) -> Tensor:
    """Return the basis ``(*, I * G)`` of inputs ``(*, I)``, or given its gradient that of the inputs."""
    x, centers_G = x.contiguous(), centers_G.contiguous()
    out = x.new_empty(*x.shape[:-1], x.shape[-1] * len(centers_G)) if gradient is None else torch.empty_like(x)
    arguments = BasisArguments(
        x=x.data_ptr(),
        gradient=None if gradient is None else gradient.data_ptr(),
        centers=centers_G.data_ptr(),
        out=out.data_ptr(),
        inverse_width=1 / width,
        count=x.numel(),
        num_centers=len(centers_G),
    )
    require_library().dkan_basis(ctypes.byref(arguments), gradient is not None, torch.get_num_threads())
    return out


def row_tiles(x_BI: Tensor, num_centers: int) -> list[slice]:
    """Return the ranges of rows that are computed at a time."""
    rows = x_BI.shape[-2]
    row_bytes = 4 * num_centers * max(1, x_BI.numel() // max(1, rows))
    step = max(recompute.MIN_TILE_ROWS, TILE_BYTES // row_bytes)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    out_BO = x_BI.new_empty(*x_BI.shape[:-1], weight_OK.shape[-2])
    for tile in row_tiles(x_BI, len(centers_G)):
        torch.matmul(basis(x_BI[..., tile, :], centers_G, width), weight_OK.mT, out=out_BO[..., tile, :])
    return out_BO


def _radial_linear_backward(
    grad_BO: Tensor, x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float, needs_x: bool
) -> tuple[Tensor, Tensor]:
    # Summed over the tiles in their order: the result is the same to the bit from run to run.
    grad_weight_OK = torch.zeros_like(weight_OK)
    grad_x_BI = x_BI.new_empty(x_BI.shape if needs_x else 0)
    for tile in row_tiles(x_BI, len(centers_G)):
        grad_tile_BO, x_tile_BI = grad_BO[..., tile, :], x_BI[..., tile, :]
        grad_weight_OK += torch.matmul(grad_tile_BO.mT, basis(x_tile_BI, centers_G, width))
        if needs_x:
            grad_basis_BK = torch.matmul(grad_tile_BO, weight_OK)
            grad_x_BI[..., tile, :] = basis(x_tile_BI, centers_G, width, grad_basis_BK)
    return grad_x_BI, grad_weight_OK


register(
    "radial_linear(Tensor x, Tensor weight, Tensor centers, float width) -> Tensor",
    _radial_linear,
    lambda x_BI, weight_OK, *_: x_BI.new_empty(*x_BI.shape[:-1], weight_OK.shape[-2]),
)
register(
    "radial_linear_backward(Tensor grad, Tensor x, Tensor weight, Tensor centers, float width, bool needs_x)"
    " -> (Tensor, Tensor)",
    _radial_linear_backward,
    lambda _, x_BI, weight_OK, __, ___, needs_x: (
        x_BI.new_empty(x_BI.shape if needs_x else 0),
        torch.empty_like(weight_OK),
    ),
)


class _RadialLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
        ctx.save_for_backward(x_BI, weight_OK, centers_G)
        ctx.width = width
        with BelowAutograd():
            out_BO: Tensor = torch.ops.dkan.radial_linear(x_BI, weight_OK, centers_G, width)
        return out_BO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needs_x = ctx.needs_input_grad[0]
        backward = torch.ops.dkan.radial_linear_backward
        grad_x_BI, grad_weight_OK = backward(grads[0], *ctx.saved_tensors, ctx.width, needs_x)
        return grad_x_BI if needs_x else None, grad_weight_OK, None, None


OPERATIONS.impl("radial_linear", _RadialLinear.apply, "Autograd")


def table_sum(indices_BT: Tensor, table_VH: Tensor) -> Tensor:
    """Return for each row the sum of the table's rows at its indices: ``embedding_bag``, whose backward does not sort.

    Shape:
        - Input: ``(B, T)`` int32, ``(V, H)``
        - Output: ``(B, H)``

    Raises:
        IndexError: An index is no row of the table.
    """
    out_BH: Tensor = torch.ops.dkan.table_sum(indices_BT, table_VH)
    return out_BH


def sum_table_rows(
    indices_BT: Tensor,
    table_VH: Tensor | None,
    grad_BH: Tensor | None = None,
    *,
    table_rows: int = 0,
    empty: int = -1,
    into_VH: Tensor | None = None,
) -> Tensor:
    """Return the sums ``(B, H)``; given their gradient and no table but its rows, the table's gradient ``(V, H)``.

    The index ``empty`` counts for nothing. Where ``into_VH``, contiguous, is given, the gradient is added to it.
    """
    indices_BT = indices_BT.to(torch.int32).contiguous()
    if grad_BH is None:
        assert table_VH is not None
        table_VH = table_VH.contiguous()
        table_rows, out = len(table_VH), table_VH.new_empty(len(indices_BT), table_VH.shape[1])
    else:
        grad_BH = grad_BH.contiguous()
        out = grad_BH.new_empty(table_rows, grad_BH.shape[1]) if into_VH is None else into_VH
        assert out.is_contiguous() and out.shape == (table_rows, grad_BH.shape[1]), "as large as the table"
    arguments = TableArguments(
        indices=indices_BT.data_ptr(),
        table=None if table_VH is None else table_VH.data_ptr(),
        gradient=None if grad_BH is None else grad_BH.data_ptr(),
        out=out.data_ptr(),
        rows=len(indices_BT),
        per_row=indices_BT.shape[1],
        table_rows=table_rows,
        width=out.shape[1],
        empty=empty,
        adds=into_VH is not None,
    )
    library = require_library()
    wrong = library.dkan_table_sum(ctypes.byref(arguments), grad_BH is not None, torch.get_num_threads())
    if wrong >= 0:
        raise IndexError(f"index {indices_BT.view(-1)[wrong].item()} of a table of {table_rows} rows")
    return out


register(
    "table_sum(Tensor indices, Tensor table) -> Tensor",
    lambda indices_BT, table_VH: sum_table_rows(indices_BT, table_VH),
    lambda indices_BT, table_VH: table_VH.new_empty(len(indices_BT), table_VH.shape[1]),
)
register(
    "table_sum_backward(Tensor grad, Tensor indices, SymInt table_rows) -> Tensor",
    lambda grad_BH, indices_BT, table_rows: sum_table_rows(indices_BT, None, grad_BH, table_rows=table_rows),
    lambda grad_BH, _, table_rows: grad_BH.new_empty(table_rows, grad_BH.shape[1]),
)


class _TableSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices_BT: Tensor, table_VH: Tensor) -> Tensor:
        ctx.save_for_backward(indices_BT)
        ctx.table_rows = len(table_VH)
        with BelowAutograd():
            out_BH: Tensor = torch.ops.dkan.table_sum(indices_BT, table_VH)
        return out_BH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (indices_BT,) = ctx.saved_tensors
        return None, torch.ops.dkan.table_sum_backward(grads[0], indices_BT, ctx.table_rows)


OPERATIONS.impl("table_sum", _TableSum.apply, "Autograd")
