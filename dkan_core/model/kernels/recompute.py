"""Backend for any device: works through tiles of rows and builds the basis again in backward instead of keeping it.

A tile's basis stays in cache, so memory traffic is that of the inputs and outputs alone. Within a tile the centers
come before the features (K = G * I, center-major), so that the exponentials run over long contiguous rows.
"""

from typing import Any

import torch
from torch import Tensor

# On a CPU what stays in the cache of a core, on a GPU what keeps it busy: smaller tiles there are bound by the time to
# launch a kernel, larger ones only take memory.
TILE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
# Fewer rows make matrix products slow; only inputs of thousands of columns are so wide that tiles exceed the limit.
MIN_TILE_ROWS = 64


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``, whose arguments it has.

    Under autocast the matrix products, forward and backward, have its type; the basis, the result and all that is
    summed over tiles keep that of the weights.

    Shape:
        - x_BI: ``(*, B, I)``; weight_OK: ``(*, O, I * G)``; centers_G: ``(G,)``; * for networks in parallel
        - Output: ``(*, B, O)``
    """
    device, dtype = x_BI.device.type, weight_OK.dtype
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
    out: Tensor = _RadialLinear.apply(x_BI.to(dtype), weight_OK, centers_G, width, product)
    return out


def _tiles(x_BI: Tensor, num_centers: int) -> list[slice]:
    rows, tile_bytes = x_BI.shape[-2], TILE_BYTES.get(x_BI.device.type, TILE_BYTES["cpu"])
    row_bytes = x_BI.element_size() * num_centers * max(1, x_BI.numel() // max(1, rows))
    step = max(MIN_TILE_ROWS, tile_bytes // row_bytes)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _center_major(weight_OK: Tensor, num_centers: int) -> Tensor:
    return weight_OK.view(*weight_OK.shape[:-1], -1, num_centers).mT.flatten(-2)


def _feature_major(weight_OK: Tensor, num_centers: int) -> Tensor:
    return weight_OK.view(*weight_OK.shape[:-1], num_centers, -1).mT.flatten(-2)


def _offsets(x_BI: Tensor, centers_G: Tensor, width: float) -> Tensor:
    return x_BI.unsqueeze(-2).sub(centers_G.unsqueeze(1)).mul_(1 / width)


class _RadialLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float, product: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x_BI, weight_OK, centers_G)
        ctx.width, ctx.product = width, product
        weight_KO = _center_major(weight_OK, len(centers_G)).to(product).mT
        out_BO = x_BI.new_empty(*x_BI.shape[:-1], weight_OK.shape[-2])
        for tile in _tiles(x_BI, len(centers_G)):
            basis_BGI = _offsets(x_BI[..., tile, :], centers_G, width).square_().neg_().exp_()
            out_BO[..., tile, :] = torch.matmul(basis_BGI.flatten(-2).to(product), weight_KO)
        return out_BO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        (grad_BO,) = grads
        x_BI, weight_OK, centers_G = ctx.saved_tensors
        weight_OK = _center_major(weight_OK, len(centers_G))
        # Summed over the tiles in their order: the result is the same to the bit from run to run.
        grad_weight_OK = torch.zeros_like(weight_OK)
        weight_OK = weight_OK.to(ctx.product)
        grad_x_BI = torch.empty_like(x_BI) if ctx.needs_input_grad[0] else None
        for tile in _tiles(x_BI, len(centers_G)):
            grad_tile_BO = grad_BO[..., tile, :].to(ctx.product)
            offset_BGI = _offsets(x_BI[..., tile, :], centers_G, ctx.width)
            basis_BGI = offset_BGI.square().neg_().exp_()
            grad_weight_OK += torch.matmul(grad_tile_BO.mT, basis_BGI.flatten(-2).to(ctx.product))
            if grad_x_BI is not None:
                grad_basis_BGI = torch.matmul(grad_tile_BO, weight_OK).view_as(basis_BGI)
                grad_x_BI[..., tile, :] = basis_BGI.mul_(grad_basis_BGI).mul_(offset_BGI).sum(dim=-2)
        if grad_x_BI is not None:
            grad_x_BI.mul_(-2 / ctx.width)
        return grad_x_BI, _feature_major(grad_weight_OK, len(centers_G)), None, None, None
