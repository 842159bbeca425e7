"""Dropout as a function of row and unit: neither the other rows of a batch nor the device matter.

Torch's own dropout draws from a generator, so that a mask depends on where a batch is cut. Here each cell is hashed by
itself (a counter-based generator, as in Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a batch
computed whole, in parts or by several workers drops the same cells.

Shape suffixes: M members, B rows, U units over all members, O units of one member.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.data.hashing import splitmix64

# Constants of the 32-bit mixer lowbias32 (Wellons 2018), without its outer shifts: both keys are mixed already, and
# only the high bits of the result are used.
FIRST_FACTOR, SHIFT, SECOND_FACTOR = 0x7FEB352D, 15, 0x846CA68B - (1 << 32)

# Torch has no logical shift of int32: the copies of the sign bit are masked away.
LOGICAL = (1 << (32 - SHIFT)) - 1


class RowDropout(nn.Module):
    """Drops units in training; each row's key decides which ones.

    Args:
        units: How many units there are, U.
        p: Share of them to drop; the others grow by 1 / (1 - p).
        layer: Number that distinguishes this module's masks from those of other modules in the same network.

    Shape:
        - Input: ``(B, U)`` or ``(M, B, O)`` with U = M * O; keys ``(B,)`` int32 of ``data.loading.loader``.
          Without keys, torch's generator decides.
        - Output: that of the input

    >>> dropout, keys = RowDropout(4, 0.5, layer=0), torch.tensor([7, 8, 7], dtype=torch.int32)
    >>> dropout(torch.ones(3, 4), keys).tolist()
    [[0.0, 2.0, 0.0, 2.0], [2.0, 0.0, 2.0, 2.0], [0.0, 2.0, 0.0, 2.0]]
    """

    unit_keys: Tensor

    def __init__(self, units: int, p: float, *, layer: int) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"p must be from 0 to below 1, got {p}")
        super().__init__()
        self.p = p
        # The layer in the high half, so that no two layers drop the same units.
        numbers = np.arange(units, dtype=np.uint64) + np.uint64(layer << 32)
        keys = (splitmix64(numbers) >> np.uint64(32)).astype(np.uint32).view(np.int32)
        self.register_buffer("unit_keys", torch.from_numpy(keys), persistent=False)

    def forward(self, x: Tensor, key_B: Tensor | None = None) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if key_B is None:
            return F.dropout(x, self.p)
        factor_BU = keep_factors(key_B, self.unit_keys, self.p, x.dtype)
        return x * (factor_BU if x.dim() == 2 else factor_BU.view(len(key_B), len(x), x.shape[-1]).transpose(0, 1))

    def hashed(self, key_B: Tensor | None) -> tuple[Tensor | None, Tensor, int]:
        """Return what a pass that drops by itself needs: keys of the rows, of the units, and the share to drop.

        Returns:
            ``(B,)`` int32, None if nothing is dropped; ``(U,)`` int32; the share in units of 2**-32.
        """
        drops = self.training and self.p > 0
        return key_B if drops else None, self.unit_keys, dropped_share(self.p)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        return f"units={len(self.unit_keys)}, p={self.p}"


def dropped_share(p: float) -> int:
    """Return a share of cells in units of 2**-32."""
    return round(p * (1 << 32))


def keep_factors(row_key_B: Tensor, unit_key_U: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Return the factor of each cell: 0 where it is dropped, else 1 / (1 - p), with p in units of 2**-32.

    Shape:
        - Input: ``(B,)`` and ``(U,)`` int32
        - Output: ``(B, U)``
    """
    dropped = dropped_share(p)
    bits_BU = row_key_B.unsqueeze(1).bitwise_xor(unit_key_U).mul_(FIRST_FACTOR)
    bits_BU.bitwise_xor_((bits_BU >> SHIFT).bitwise_and_(LOGICAL)).mul_(SECOND_FACTOR)
    return bits_BU.ge_(dropped - (1 << 31)).to(dtype).mul_(1 / (1 - dropped / (1 << 32)))
