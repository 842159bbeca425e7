"""A linear layer whose weight is a sum of two products of a random sketch and a trained factor.

The sketched layer of Kasiviswanathan, Narodytska and Jin (2018, arXiv:1710.07850), which Panther (Seddik et al. 2026,
arXiv:2601.15473) has as ``SKLinear``: with l terms of rank k,

    W = 1 / (2 l) * sum over i of (U1_i^T S1_i + S2_i U2_i)

where all S are trained and all U are fixed, random signs over the root of k. Here l is 1: l terms of rank k are one of
rank l k, whose factors are larger by the root of l.

Shape suffixes: B rows, I inputs, O outputs, R rank.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Sketch(NamedTuple):
    """What decides the random matrices of sketched layers."""

    rank: int
    seed: int


class SketchedLinear(nn.Module):
    """A linear layer with ``W = (U1^T S1 + S2 U2) / 2``.

    Model files hold S1 and S2; U1 and U2 follow from the seed, so that all processes and machines have the same.

    Args:
        inputs: How many inputs, I.
        outputs: How many outputs, O.
        sketch: Rank, and the seed of U1 and U2.
        stream: Which of the seed's random matrices the layer has; each layer of a model needs another number.
        std: Standard deviation of the numbers of W at the start.
        bias: Whether a trained number is added to each output.

    Shape:
        - Input: ``(B, I)``
        - Output: ``(B, O)``

    >>> layer = SketchedLinear(30, 20, Sketch(rank=4, seed=0), stream=0, std=0.1, bias=False)
    >>> layer.weight.shape, sum(each.numel() for each in layer.parameters())
    (torch.Size([20, 30]), 200)
    """

    bias: Tensor
    half_u1: Tensor
    half_u2: Tensor
    kept_weight: Tensor | None

    def __init__(self, inputs: int, outputs: int, sketch: Sketch, *, stream: int, std: float, bias: bool) -> None:
        super().__init__()
        # NOTE[DIFF] In the paper S1 = U1 W and S2 = W U2^T for the W to be approximated. The sketch of a random W is
        # larger by the root of (inputs + outputs) / (4 rank): 32 times for 4,096 columns and rank 8.
        self.s1_weight = nn.Parameter(torch.randn(sketch.rank, inputs) * (std * math.sqrt(2)))
        self.s2_weight = nn.Parameter(torch.randn(outputs, sketch.rank) * (std * math.sqrt(2)))
        initial_bias = torch.empty(outputs).uniform_(-(inputs**-0.5), inputs**-0.5) if bias else None
        self.register_parameter("bias", None if initial_bias is None else nn.Parameter(initial_bias))
        # They include the factor 1/2 of the formula.
        u1_RO, u2_RI = (random_signs(sketch, width, 2 * stream + i) for i, width in enumerate((outputs, inputs)))
        self.register_buffer("half_u1", u1_RO / 2, persistent=False)
        self.register_buffer("half_u2", u2_RI / 2, persistent=False)
        self.register_buffer("kept_weight", None, persistent=False)
        self._step_weight: Tensor | None = None
        self._in_step = False

    @property
    def weight(self) -> Tensor:
        """W ``(O, I)``, computed from the factors on each access unless it is kept; gradients flow to the factors."""
        if self.kept_weight is not None:
            return self.kept_weight
        if self._in_step and self._step_weight is not None:
            return self._step_weight
        # Autocast would round W itself, which a full layer keeps in float32.
        with torch.autocast(self.s1_weight.device.type, enabled=False):
            return torch.addmm(self.s2_weight @ self.half_u2, self.half_u1.T, self.s1_weight)

    def keep_weight(self) -> None:
        """Compute W once and for all, for a layer that is no longer trained."""
        self.kept_weight = None
        self.kept_weight = self.weight.detach()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Compute W once for a gradient of many parts; the factors' ``grad`` gets that of W when the block ends.

        Inside the block, W is a leaf, always in the same memory, so that gradients can be computed without autograd.
        """
        with torch.no_grad():
            if self._step_weight is None:
                self._step_weight = torch.empty_like(self.weight).requires_grad_()
                self._step_weight.grad = torch.empty_like(self._step_weight)
            weight_OI, grad_OI = self._step_weight, self._step_weight.grad
            assert grad_OI is not None and self.s1_weight.grad is not None and self.s2_weight.grad is not None
            torch.mm(self.s2_weight, self.half_u2, out=weight_OI)
            weight_OI.addmm_(self.half_u1.T, self.s1_weight)
            grad_OI.zero_()
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
        self.s1_weight.grad.addmm_(self.half_u1, grad_OI)
        self.s2_weight.grad.addmm_(grad_OI, self.half_u2.T)

    def forward(self, x_BI: Tensor) -> Tensor:
        return F.linear(x_BI, self.weight, self.bias)


def sketched_layers(model: nn.Module) -> list[SketchedLinear]:
    """Return the sketched layers of a model."""
    return [module for module in model.modules() if isinstance(module, SketchedLinear)]


@contextmanager
def one_step(layers: Sequence[SketchedLinear]) -> Iterator[None]:
    """Make sketched layers compute their weights once; see ``SketchedLinear.step``."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.step())
        yield


def random_signs(sketch: Sketch, width: int, stream: int) -> Tensor:
    """Return a random matrix of signs over the root of the rank, so that its columns have length 1.

    The bits are those of NumPy's Philox generator, which are the same with every version and machine.

    Args:
        sketch: Rank and seed.
        width: Columns.
        stream: Which of the seed's matrices.

    Shape:
        - Output: ``(R, width)``

    >>> random_signs(Sketch(rank=4, seed=0), 3, stream=1).square()
    tensor([[0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500]])
    """
    count = sketch.rank * width
    words = np.random.Philox(key=np.array([sketch.seed, stream], np.uint64)).random_raw(-(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=count)
    signs = torch.from_numpy(bits).float().mul_(2).sub_(1)
    return signs.view(sketch.rank, width) / math.sqrt(sketch.rank)
