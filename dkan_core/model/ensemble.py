"""Several FastKANs trained as one: their first layers are one wide layer, the others run in parallel.

The basis of the inputs, which is most of the work, is computed once for all members. Members differ by their
initialization and dropout alone; the mean of their probabilities is better than any one of them, as it is for the
members of an MLP (TabM: Gorishniy et al. 2024, arXiv:2410.24210).

Shape suffixes: M members, B rows, I inputs, O outputs, G centers.
"""

import itertools
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.model.dropout import RowDropout
from dkan_core.model.fastkan import SPLINE_STD, Basis, FastKANLayer, RadialBasis
from dkan_core.model.kernels import KernelModule, hidden_layer, radial_linear
from dkan_core.model.sketch import Sketch


class MemberLayer(KernelModule):
    """FastKAN layers in parallel, one per member, each with inputs and weights of its own.

    Args:
        members: How many layers, M.
        inputs: Inputs of each, I.
        outputs: Outputs of each, O.
        basis: Settings of ``RadialBasis``.

    Shape:
        - Input: ``(M, B, I)``; dropout of these inputs, and maybe the rows' keys for it
        - Output: ``(M, B, O)``

    >>> MemberLayer(2, 3, 5)(torch.zeros(2, 4, 3)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(self, members: int, inputs: int, outputs: int, **basis: Unpack[Basis]) -> None:
        super().__init__()
        self.rbf = RadialBasis(**basis)
        self.norm_weight = nn.Parameter(torch.ones(members, 1, inputs))
        self.norm_bias = nn.Parameter(torch.zeros(members, 1, inputs))
        self.spline_weight = nn.Parameter(torch.empty(members, outputs, inputs * len(self.rbf.grid)))
        self.base_weight = nn.Parameter(torch.empty(members, outputs, inputs))
        self.base_bias = nn.Parameter(torch.zeros(members, 1, outputs))
        # As ``FastKANLayer`` starts: by the paper, and as torch starts a linear layer.
        nn.init.trunc_normal_(self.spline_weight, std=SPLINE_STD)
        nn.init.uniform_(self.base_weight, -(inputs**-0.5), inputs**-0.5)

    def weights(self) -> tuple[Tensor, ...]:
        """Return what the layer learns, as ``kernels.hidden_layer`` takes it."""
        return self.norm_weight, self.norm_bias, self.spline_weight, self.base_weight, self.base_bias

    def forward(self, x_MBI: Tensor, dropout: RowDropout | None = None, dropout_key_B: Tensor | None = None) -> Tensor:
        fused_MBO = hidden_layer(
            x_MBI, self.weights(), self.rbf.grid, self.rbf.width, dropout, dropout_key_B, self.kernel
        )
        if fused_MBO is not None:
            return fused_MBO
        x_MBI = x_MBI if dropout is None else dropout(x_MBI, dropout_key_B)
        normed_MBI = F.layer_norm(x_MBI, x_MBI.shape[-1:]) * self.norm_weight + self.norm_bias
        spline_MBO = radial_linear(normed_MBI, self.spline_weight, self.rbf.grid, self.rbf.width, self.kernel)
        return spline_MBO + torch.matmul(F.silu(x_MBI), self.base_weight.mT) + self.base_bias


class FastKANEnsemble(nn.Module):
    """Members of the same widths, trained on the same rows.

    Args:
        members: How many.
        widths: Inputs (maybe none), a member's hidden widths and outputs.
        input_norm: "layer" normalizes the inputs row by row; "none" does not.
        dropout: Share of each hidden layer's units dropped while training.
        sketch: Sketch of the first layer's weights. None: the weights themselves are trained.
        basis: Settings of ``RadialBasis``.

    Shape:
        - Input: ``(B, widths[0])``; while training maybe keys ``(B,)`` that decide what is dropped (``RowDropout``)
        - Output: ``(M, B, widths[-1])``

    >>> FastKANEnsemble(5, [3, 16, 1])(torch.zeros(4, 3)).shape
    torch.Size([5, 4, 1])
    """

    def __init__(
        self,
        members: int,
        widths: list[int],
        *,
        input_norm: str = "none",
        dropout: float = 0.0,
        sketch: Sketch | None = None,
        **basis: Unpack[Basis],
    ) -> None:
        super().__init__()
        self.members = members
        inputs, first, *_ = widths
        norm = input_norm == "layer"
        # Without inputs, as with binary columns alone, the first layer's output is only the shifts.
        self.first = FastKANLayer(inputs, members * first, norm=norm, sketch=sketch, **basis) if inputs else None
        self.rest = nn.ModuleList(
            MemberLayer(members, inputs, outputs, **basis) for inputs, outputs in itertools.pairwise(widths[1:])
        )
        self.dropouts = nn.ModuleList(
            RowDropout(members * width, dropout, layer=index) for index, width in enumerate(widths[1:-1], start=1)
        )

    @property
    def layers(self) -> list[nn.Module | None]:
        """All layers in their order, as ``FastKAN`` has them; the first is None without inputs."""
        return [self.first, *self.rest]

    def forward(self, x_BI: Tensor, dropout_key_B: Tensor | None = None) -> Tensor:
        assert self.first is not None, "without inputs there is only what is added to the first layer's output"
        return self.after_first(self.first(x_BI), dropout_key_B)

    def after_first(self, first_BO: Tensor, dropout_key_B: Tensor | None = None) -> Tensor:
        """Return the output, given the sum of the first layers' output and what is to be added to it."""
        hidden_MBO: Tensor = first_BO.unflatten(1, (self.members, -1)).transpose(0, 1)
        for dropout, layer in zip(self.dropouts, self.rest, strict=True):
            hidden_MBO = layer(hidden_MBO, dropout, dropout_key_B)
        return hidden_MBO


def mean_log_odds(logits_MBL: Tensor) -> Tensor:
    """Return the log-odds of the mean of the members' probabilities.

    Shape:
        - Input: ``(M, B, L)``
        - Output: ``(B, L)``

    >>> round(mean_log_odds(torch.tensor([-1.0, 1.0, 40.0]).view(3, 1, 1)).item(), 4)
    0.6931
    """
    # A single member's log-odds keep all their bits. Of several, the sums of p and of 1 - p are taken as logarithms, so
    # that probabilities near 0 and 1 do not round to them; dividing both by M would change nothing.
    if len(logits_MBL) == 1:
        return logits_MBL[0]
    return F.logsigmoid(logits_MBL).logsumexp(0) - F.logsigmoid(-logits_MBL).logsumexp(0)
