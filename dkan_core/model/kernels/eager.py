"""Reference backend: the formula written out, the whole basis in memory."""

import torch
from torch import Tensor
from torch.nn import functional as F


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the sum over features i and centers g of ``weight[o, i * G + g] * exp(-((x[i] - center[g]) / width)^2)``.

    Shape:
        - x_BI: ``(B, I)``; weight_OK: ``(O, I * G)``; centers_G: ``(G,)``
        - Output: ``(B, O)``
    """
    basis_BIG = torch.exp(-((x_BI.unsqueeze(-1) - centers_G) / width).square())
    return F.linear(basis_BIG.flatten(1), weight_OK)
