"""Reference backend: the formula written out, the whole basis in memory."""

import torch
from torch import Tensor


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the sum over features i and centers g of ``weight[o, i * G + g] * exp(-((x[i] - center[g]) / width)^2)``.

    Args:
        x_BI: Inputs.
        weight_OK: Weights, those of an input's centers next to each other.
        centers_G: Where the Gaussians lie.
        width: Their width.

    Shape:
        - x_BI: ``(*, B, I)``; weight_OK: ``(*, O, I * G)``; centers_G: ``(G,)``; * for networks in parallel
        - Output: ``(*, B, O)``
    """
    basis_BIG = torch.exp(-((x_BI.unsqueeze(-1) - centers_G) / width).square())
    return torch.matmul(basis_BIG.flatten(-2), weight_OK.mT)
