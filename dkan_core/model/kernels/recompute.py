"""Backend for any device: works through tiles of rows and builds the basis again in backward instead of keeping it.

A tile's basis stays in cache, so memory traffic is that of the inputs and outputs alone. Within a tile the centers
come before the features (K = G * I, center-major), so that the exponentials run over long contiguous rows.
"""

from typing import Any

import torch
from torch import Tensor

TILE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
MIN_TILE_ROWS = 64


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``.

    Shape:
        - x_BI: ``(B, I)``; weight_OK: ``(O, I * G)``; centers_G: ``(G,)``
        - Output: ``(B, O)``
    """
    out: Tensor = _RadialLinear.apply(x_BI, weight_OK, centers_G, width)
    return out


def _tiles(x_BI: Tensor, num_centers: int) -> list[slice]:
    rows, tile_bytes = len(x_BI), TILE_BYTES.get(x_BI.device.type, TILE_BYTES["cpu"])
    step = max(MIN_TILE_ROWS, tile_bytes // (x_BI.element_size() * num_centers * x_BI.shape[1]))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _center_major(weight_OK: Tensor, num_centers: int) -> Tensor:
    return weight_OK.view(len(weight_OK), -1, num_centers).transpose(1, 2).flatten(1)


def _feature_major(weight_OK: Tensor, num_centers: int) -> Tensor:
    return weight_OK.view(len(weight_OK), num_centers, -1).transpose(1, 2).flatten(1)


def _offsets(x_BI: Tensor, centers_G: Tensor, width: float) -> Tensor:
    return x_BI.unsqueeze(1).sub(centers_G.unsqueeze(1)).mul_(1 / width)


class _RadialLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
        ctx.save_for_backward(x_BI, weight_OK, centers_G)
        ctx.width = width
        weight_KO = _center_major(weight_OK, len(centers_G)).t()
        out_BO = x_BI.new_empty(len(x_BI), len(weight_OK))
        for tile in _tiles(x_BI, len(centers_G)):
            basis_BGI = _offsets(x_BI[tile], centers_G, width).square_().neg_().exp_()
            torch.mm(basis_BGI.flatten(1), weight_KO, out=out_BO[tile])
        return out_BO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        (grad_BO,) = grads
        x_BI, weight_OK, centers_G = ctx.saved_tensors
        weight_OK = _center_major(weight_OK, len(centers_G))
        grad_weight_OK = torch.zeros_like(weight_OK)
        grad_x_BI = torch.empty_like(x_BI) if ctx.needs_input_grad[0] else None
        for tile in _tiles(x_BI, len(centers_G)):
            offset_BGI = _offsets(x_BI[tile], centers_G, ctx.width)
            basis_BGI = offset_BGI.square().neg_().exp_()
            grad_weight_OK.addmm_(grad_BO[tile].t(), basis_BGI.flatten(1))
            if grad_x_BI is not None:
                grad_basis_BGI = torch.mm(grad_BO[tile], weight_OK).view_as(basis_BGI)
                torch.sum(grad_basis_BGI.mul_(basis_BGI).mul_(offset_BGI), dim=1, out=grad_x_BI[tile])
        if grad_x_BI is not None:
            grad_x_BI.mul_(-2 / ctx.width)
        return grad_x_BI, _feature_major(grad_weight_OK, len(centers_G)), None, None
