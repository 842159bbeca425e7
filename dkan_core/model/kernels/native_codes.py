"""A layer some of whose inputs are embeddings of codes, by the native extension.

What an embedded column adds to the layer's outputs is a function of its code alone: it is computed once for each code,
a table, and each row takes the sum of its codes' entries. The gradient goes the same way back. It is the same sum in
another order, with smaller matrix products wherever there are fewer codes than rows.

Shape suffixes: B rows, D inputs that are no embeddings, E embedded columns, N numbers of all embeddings, V codes of all
embedded columns, O outputs, G centers, I all inputs.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model.kernels.native import OPERATIONS, BelowAutograd, basis, register, row_tiles, sum_table_rows

MAX_CODES = 128
"""Columns of more codes are no tables: batches have at least so many rows, so that the rows would be fewer."""


@dataclass(frozen=True)
class Layout:
    """Where the inputs of a layer come from, in the order of its weights.

    Args:
        dense: For each stretch of inputs that are no embeddings, the first one and how many.
        coded: For each embedded column, its first input, how many, and the column's codes.
    """

    dense: Sequence[tuple[int, int]]
    coded: Sequence[tuple[int, int, int]]

    @classmethod
    def unflatten(cls, dense: Sequence[int], coded: Sequence[int]) -> "Layout":
        """Return what two lists of numbers say, as operations take them."""
        return cls(
            list(zip(dense[::2], dense[1::2], strict=True)),
            list(zip(coded[::3], coded[1::3], coded[2::3], strict=True)),
        )


def layer_with_codes(
    x_BD: Tensor,
    codes_BE: Tensor,
    embeddings: Sequence[Tensor],
    weights: Sequence[Tensor],
    grid: tuple[Tensor, float],
    layout: Layout,
) -> Tensor:
    """Return basis and linear map plus SiLU and linear map of inputs and embeddings.

    Args:
        x_BD: Inputs that are no embeddings.
        codes_BE: Code of each embedded column.
        embeddings: Of each of these columns.
        weights: Of the basis ``(O, I * G)`` and of the SiLU ``(O, I)``, and what is added ``(O,)``.
        grid: Centers ``(G,)`` and width of the Gaussians.
        layout: Where the inputs are among the weights.

    Shape:
        - Output: ``(B, O)``
    """
    sizes = [len(embedding) for embedding in embeddings]
    offsets_E = codes_BE.new_tensor([0, *itertools.accumulate(sizes)][:-1])
    flat_N = torch.cat([embedding.reshape(-1) for embedding in embeddings])
    places_BE = codes_BE + offsets_E
    flattened = [[number for part in parts for number in part] for parts in (layout.dense, layout.coded)]
    out_BO: Tensor = torch.ops.dkan.layer_with_codes(x_BD, flat_N, *weights, places_BE, *grid, *flattened)
    return out_BO


@dataclass(frozen=True)
class _Part:
    """A stretch of inputs: those before it and its own in the weights, and its own among those like it."""

    inputs: slice
    """Among the weights of the SiLU."""

    basis: slice
    """Among those of the basis."""

    own: slice
    """Dense: columns of the inputs; coded: numbers of the embeddings."""

    rows: slice
    """Coded: rows of the table."""

    width: int
    """How many inputs."""


def _parts(layout: Layout, centers: int) -> Iterator[tuple[bool, _Part]]:
    """Yield whether it is coded, and where it is, of each part."""
    column = 0
    for start, width in layout.dense:
        stop = start + width
        own = slice(column, column + width)
        column += width
        yield False, _Part(slice(start, stop), slice(start * centers, stop * centers), own, slice(0), width)
    number = row = 0
    for start, width, codes in layout.coded:
        stop = start + width
        own, rows = slice(number, number + width * codes), slice(row, row + codes)
        number, row = own.stop, rows.stop
        yield True, _Part(slice(start, stop), slice(start * centers, stop * centers), own, rows, width)


def _forward(
    x_BD: Tensor,
    flat_N: Tensor,
    spline_OK: Tensor,
    base_OI: Tensor,
    bias_O: Tensor,
    places_BE: Tensor,
    centers_G: Tensor,
    width: float,
    dense: Sequence[int],
    coded: Sequence[int],
) -> Tensor:
    layout, centers = Layout.unflatten(dense, coded), len(centers_G)
    codes = _Codes(flat_N, centers_G, width)
    table_VO = flat_N.new_empty(sum(size for *_, size in layout.coded), len(bias_O))
    out_BO = bias_O.repeat(len(x_BD), 1)
    for is_coded, part in _parts(layout, centers):
        spline_KO, base_IO = spline_OK[:, part.basis].T, base_OI[:, part.inputs].T
        if is_coded:
            torch.mm(codes.silu(part), base_IO, out=table_VO[part.rows])
            table_VO[part.rows].addmm_(codes.basis(part), spline_KO)
        else:
            for tile in row_tiles(x_BD, centers):
                x_tile = x_BD[tile, part.own]
                out_BO[tile].addmm_(F.silu(x_tile), base_IO).addmm_(basis(x_tile, centers_G, width), spline_KO)
    return out_BO.add_(sum_table_rows(places_BE, table_VO))


class _Codes:
    """The embeddings, their basis and their SiLU."""

    def __init__(self, flat_N: Tensor, centers_G: Tensor, width: float) -> None:
        self.centers = len(centers_G)
        self._silu_N = F.silu(flat_N)
        self._basis_NG = basis(flat_N.unsqueeze(1), centers_G, width)

    def silu(self, part: _Part) -> Tensor:
        """Return the SiLU ``(codes, inputs)`` of a column's embeddings."""
        return self._silu_N[part.own].view(-1, part.width)

    def basis(self, part: _Part) -> Tensor:
        """Return the basis ``(codes, inputs * G)`` of a column's embeddings."""
        return self._basis_NG[part.own].view(-1, part.width * self.centers)


def _backward(
    grad_BO: Tensor,
    x_BD: Tensor,
    flat_N: Tensor,
    spline_OK: Tensor,
    base_OI: Tensor,
    bias_O: Tensor,
    places_BE: Tensor,
    centers_G: Tensor,
    width: float,
    dense: Sequence[int],
    coded: Sequence[int],
    needs_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    layout, centers = Layout.unflatten(dense, coded), len(centers_G)
    grad_BO = grad_BO.contiguous()
    codes = _Codes(flat_N, centers_G, width)
    grad_x_BD, grad_spline_OK, grad_base_OI = map(torch.zeros_like, (x_BD, spline_OK, base_OI))
    grad_silu_N, grad_basis_NG = torch.empty_like(flat_N), flat_N.new_empty(len(flat_N), centers)
    table_rows = sum(size for *_, size in layout.coded)
    grad_table_VO = sum_table_rows(places_BE, None, grad_BO, table_rows=table_rows)
    for is_coded, part in _parts(layout, centers):
        spline_OK_part, base_OI_part = spline_OK[:, part.basis], base_OI[:, part.inputs]
        if is_coded:
            grad_VO = grad_table_VO[part.rows]
            grad_base_OI[:, part.inputs] = torch.mm(grad_VO.T, codes.silu(part))
            grad_spline_OK[:, part.basis] = torch.mm(grad_VO.T, codes.basis(part))
            torch.mm(grad_VO, base_OI_part, out=grad_silu_N[part.own].view(-1, part.width))
            torch.mm(grad_VO, spline_OK_part, out=grad_basis_NG[part.own].view(-1, part.width * centers))
            continue
        for tile in row_tiles(x_BD, centers):
            x_tile, grad_tile = x_BD[tile, part.own], grad_BO[tile]
            grad_base_OI[:, part.inputs] += torch.mm(grad_tile.T, F.silu(x_tile))
            grad_spline_OK[:, part.basis] += torch.mm(grad_tile.T, basis(x_tile, centers_G, width))
            if needs_x:
                through_basis = basis(x_tile, centers_G, width, torch.mm(grad_tile, spline_OK_part))
                grad_x_BD[tile, part.own] = through_basis + _silu_gradient(torch.mm(grad_tile, base_OI_part), x_tile)
    grad_flat_N = basis(flat_N.unsqueeze(1), centers_G, width, grad_basis_NG).squeeze(1)
    grad_flat_N += _silu_gradient(grad_silu_N, flat_N)
    return grad_x_BD, grad_flat_N, grad_spline_OK, grad_base_OI, grad_BO.sum(0)


def _silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(grad, x)  # type: ignore[no-any-return] # operations have no types


_ARGUMENTS = (
    "Tensor x, Tensor flat, Tensor spline, Tensor base, Tensor bias, Tensor places, Tensor centers, float width, "
    "int[] dense, int[] coded"
)
register(
    f"layer_with_codes({_ARGUMENTS}) -> Tensor",
    _forward,
    lambda x_BD, _, spline_OK, *__: x_BD.new_empty(len(x_BD), len(spline_OK)),
)
register(
    f"layer_with_codes_backward(Tensor grad, {_ARGUMENTS}, bool needs_x) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    lambda _, *rest: tuple(map(torch.empty_like, rest[:5])),
)


class _LayerWithCodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.width, ctx.dense, ctx.coded = arguments
        ctx.save_for_backward(*tensors)
        with BelowAutograd():
            out_BO: Tensor = torch.ops.dkan.layer_with_codes(*arguments)
        return out_BO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        backward = torch.ops.dkan.layer_with_codes_backward
        needs_x = ctx.needs_input_grad[0]
        grad_x_BD, *others = backward(grads[0], *ctx.saved_tensors, ctx.width, ctx.dense, ctx.coded, needs_x)
        return (grad_x_BD if needs_x else None, *others, None, None, None, None, None)


OPERATIONS.impl("layer_with_codes", _LayerWithCodes.apply, "Autograd")
