"""A first layer of stored bytes on CUDA in one pass: scores, their basis and SiLU, and the linear maps of both.

A byte stands for a score, and is all that is read of an input: neither scores nor basis are ever written to memory.
SiLU counts as one more function of the basis, the last. The weights are laid out function by function, so that the
values of a function for some inputs, computed in registers, are an operand of the tensor cores as they are. Sums over
many inputs or rows are cut up, and the parts summed afterwards: without atomics, so that the same inputs give the same
bits.

Float32 products are three products of halves of the operands ("bf16x3"): each is the sum of two bfloat16, which have 16
bits of it. The error is some 1e-5 of the result, where TF32's is 5e-4: tensor cores cut off the last bits of long sums.

Shape suffixes: B rows, I inputs, G centers, S functions (G Gaussians and SiLU), O outputs, H halves of an operand (one
or two), R parts of a sum.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, STEPS
from dkan_core.model.kernels import fused
from dkan_core.model.kernels.fused import OPTIONS, PROGRAMS, VARYING

SPLIT = torch.bfloat16
"""Type of the halves of a float32."""

ROOT_LOG2_E = math.sqrt(math.log2(math.e))
"""exp(-x ** 2) is 2 ** -(x * this) ** 2, which the device computes in one instruction."""


class Tiling(NamedTuple):
    """How a pass is cut up."""

    rows: int
    inputs: int
    outputs: int
    """At most."""

    warps: int
    stages: int


class Tilings(NamedTuple):
    """Those of both passes."""

    forward: Tiling
    backward: Tiling


HALF = Tilings(Tiling(64, 32, 256, 4, 4), Tiling(64, 128, 256, 8, 3))
FLOAT32 = Tilings(Tiling(128, 32, 256, 8, 3), Tiling(32, 128, 256, 8, 3))
"""The fastest on an H200 of those that need no room other than the registers."""

AMPERE = Tilings(Tiling(64, 32, 128, 4, 3), Tiling(32, 64, 128, 4, 3))
FLOAT32_AMPERE = Tilings(Tiling(64, 32, 64, 4, 3), Tiling(32, 64, 64, 4, 3))
"""For GPUs with less shared memory than an H100."""


@triton.jit
def _score(byte, step, limit):
    """Return the score that a byte stands for, 0 where it is missing; as ``scores.decode_scores``."""
    return tl.where(byte == 0, 0.0, (byte.to(tl.float32) - 1) * step - limit)


@triton.jit
def _gaussian(byte, center, scale, step, limit):
    """Return the Gaussian of a byte's score around a center."""
    decoded = byte.to(tl.float32) * (step * scale) - (step + limit + center) * scale
    offset = tl.where(byte == 0, -center * scale, decoded)
    return tl.exp2(-offset * offset)


@triton.jit
def _silu(byte, step, limit):
    score = _score(byte, step, limit)
    return score * tl.sigmoid(score)


@triton.jit
def _add_product(value, other, half, mask, sum, HALVES: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Add the product of a value in registers and a tile in memory; its second half lies ``half`` further on."""
    first = tl.load(other, mask, 0.0)
    high = value.to(first.dtype)
    if TRANSPOSED:
        first = tl.trans(first)
    if HALVES == 2:
        second = tl.load(other + half, mask, 0.0)
        if TRANSPOSED:
            second = tl.trans(second)
        sum = tl.dot((value - high.to(tl.float32)).to(first.dtype), first, sum)
        sum = tl.dot(high, second, sum)
    return tl.dot(high, first, sum)


@triton.jit(do_not_specialize=VARYING)
def _forward(
    stored, weight, bias, centers, out, scale, step, limit, B, I, O, padded, part_tiles,  # noqa: E741
    HALVES: tl.constexpr, G: tl.constexpr, TB: tl.constexpr, TI: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    # In 64 bits only where a tile begins.
    begin = tl.program_id(0).to(tl.int64) * TB
    part = tl.program_id(2)
    first = part * part_tiles * TI
    stored += begin * I + first
    weight += first
    rows = tl.arange(0, TB)[:, None]
    left = tl.minimum(B - begin, TB).to(tl.int32)
    inputs_left = I - first
    outputs = tl.program_id(1) * TO + tl.arange(0, TO)
    stride = padded.to(tl.int64)
    half = (G + 1) * O * stride
    tiles = tl.minimum(part_tiles, (padded - first) // TI)
    sum_BO = tl.zeros((TB, TO), dtype=tl.float32)
    for term in range(0, tiles * G):
        inputs = term // G * TI + tl.arange(0, TI)[None, :]
        byte_BI = tl.load(stored + rows * I + inputs, (rows < left) & (inputs < inputs_left), 0)
        value_BI = _gaussian(byte_BI, tl.load(centers + term % G), scale, step, limit)
        weight_OI = weight + (term % G * O + outputs[:, None]) * stride + inputs
        sum_BO = _add_product(value_BI, weight_OI, half, outputs[:, None] < O, sum_BO, HALVES, True)
    for tile in range(0, tiles):
        inputs = tile * TI + tl.arange(0, TI)[None, :]
        byte_BI = tl.load(stored + rows * I + inputs, (rows < left) & (inputs < inputs_left), 0)
        weight_OI = weight + (G * O + outputs[:, None]) * stride + inputs
        sum_BO = _add_product(_silu(byte_BI, step, limit), weight_OI, half, outputs[:, None] < O, sum_BO, HALVES, True)
    if part == 0:
        sum_BO += tl.load(bias + outputs, outputs < O, 0.0)[None, :]
    out += (part * B + begin) * O
    tl.store(out + rows * O + outputs[None, :], sum_BO, (rows < left) & (outputs[None, :] < O))


@triton.jit(do_not_specialize=VARYING)
def _backward(
    stored, grad, centers, grad_weight, scale, step, limit, B, I, O, part_tiles,  # noqa: E741
    FUNCTIONS: tl.constexpr, IS_SILU: tl.constexpr,
    HALVES: tl.constexpr, TB: tl.constexpr, TI: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    inputs = (tl.program_id(0) * TI + tl.arange(0, TI))[:, None]
    function = tl.program_id(1) % FUNCTIONS
    outputs = (tl.program_id(1) // FUNCTIONS * TO + tl.arange(0, TO))[None, :]
    center = tl.load(centers + function)
    part = tl.program_id(2)
    begin = part.to(tl.int64) * part_tiles * TB
    stored += begin * I
    grad += begin * O
    half = B.to(tl.int64) * O
    left = tl.minimum(part_tiles * TB, B - begin).to(tl.int32)
    sum_IO = tl.zeros((TI, TO), dtype=tl.float32)
    rows = tl.arange(0, TB)
    for first in range(0, left, TB):
        byte_IB = tl.load(stored + rows[None, :] * I + inputs, (rows[None, :] < left - first) & (inputs < I), 0)
        value_IB = _silu(byte_IB, step, limit) if IS_SILU else _gaussian(byte_IB, center, scale, step, limit)
        mask = (rows[:, None] < left - first) & (outputs < O)
        sum_IO = _add_product(value_IB, grad + rows[:, None] * O + outputs, half, mask, sum_IO, HALVES, False)
        # Not by an offset from the beginning of the part, which 32 bits might not hold.
        stored += TB * I
        grad += TB * O
    grad_weight += (part * FUNCTIONS + function).to(tl.int64) * O * I
    tl.store(grad_weight + outputs * I + inputs, sum_IO, (inputs < I) & (outputs < O))


def byte_layer(
    stored_BI: Tensor, spline_OK: Tensor, base_OI: Tensor, bias_O: Tensor, centers_G: Tensor, width: float
) -> Tensor:
    """Return basis and linear map plus SiLU and linear map of the scores that bytes stand for.

    Under autocast the operands of the matrix products, forward and backward, have its type; the result and all that is
    summed are float32.

    Shape:
        - stored_BI: ``(B, I)`` uint8; spline_OK: ``(O, I * G)``; base_OI: ``(O, I)``; bias_O: ``(O,)``
        - Output: ``(B, O)``
    """
    device = stored_BI.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    with torch.cuda.device_of(stored_BI):
        out_BO: Tensor = _ByteLayer.apply(stored_BI, spline_OK, base_OI, bias_O, centers_G, width, product)
    return out_BO


class _Layer:
    """A layer's sizes, as the kernels take them."""

    def __init__(self, stored_BI: Tensor, centers_G: Tensor, outputs: int, width: float, product: torch.dtype) -> None:
        self.stored_BI = stored_BI
        self.centers_G = centers_G
        self.rows, self.inputs = stored_BI.shape
        self.outputs = outputs
        self.halves = 2 if product == torch.float32 else 1
        self.scores = (ROOT_LOG2_E / width, 2 * SCORE_LIMIT / STEPS, SCORE_LIMIT)
        hopper, ampere = ((FLOAT32, FLOAT32_AMPERE), (HALF, AMPERE))[self.halves == 1]
        self.tilings = hopper if fused.has_large_tiles(stored_BI.device) else ampere

    def tiles(self, tiling: Tiling) -> dict[str, Any]:
        """Return the constants of a pass; matrix products take at least 16 by 16 numbers."""
        return {
            "HALVES": self.halves,
            "G": len(self.centers_G),
            "TB": tiling.rows,
            "TI": max(16, min(tiling.inputs, triton.next_power_of_2(self.inputs))),
            "TO": max(16, min(tiling.outputs, triton.next_power_of_2(self.outputs))),
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
            **OPTIONS,
        }

    def padded(self, weight_SOI: Tensor) -> Tensor:
        """Return weights for whole tiles of inputs: the added ones are 0."""
        inputs = self.tiles(self.tilings.forward)["TI"]
        return F.pad(weight_SOI, (0, -self.inputs % inputs))

    def forward(self, weight_HSOI: Tensor, bias_O: Tensor) -> Tensor:
        """Return the output ``(B, O)``; with few rows, the inputs are cut up so that all multiprocessors have work."""
        tiles = self.tiles(self.tilings.forward)
        across = (triton.cdiv(self.rows, tiles["TB"]), triton.cdiv(self.outputs, tiles["TO"]))
        padded = weight_HSOI.shape[-1]
        part_tiles, parts = _cut(padded // tiles["TI"], across[0] * across[1])
        out_RBO = torch.empty(parts, self.rows, self.outputs, device=bias_O.device)
        tensors = (self.stored_BI, weight_HSOI, bias_O, self.centers_G, out_RBO)
        sizes = (self.rows, self.inputs, self.outputs, padded, part_tiles)
        _forward[*across, parts](*tensors, *self.scores, *sizes, **tiles)
        return out_RBO.sum(0) if parts > 1 else out_RBO[0]

    def backward(self, grad_HBO: Tensor, functions: int, *, is_silu: bool) -> Tensor:
        """Return the gradient of the weights of some functions, the Gaussians or SiLU: ``(functions, O, I)``."""
        tiles = self.tiles(self.tilings.backward)
        del tiles["G"]
        across = (triton.cdiv(self.inputs, tiles["TI"]), triton.cdiv(self.outputs, tiles["TO"]) * functions)
        part_tiles, parts = _cut(triton.cdiv(self.rows, tiles["TB"]), across[0] * across[1])
        grad_RSOI = torch.empty(parts, functions, self.outputs, self.inputs, device=grad_HBO.device)
        tensors = (self.stored_BI, grad_HBO, self.centers_G, grad_RSOI)
        sizes = (self.rows, self.inputs, self.outputs, part_tiles)
        _backward[*across, parts](*tensors, *self.scores, *sizes, FUNCTIONS=functions, IS_SILU=is_silu, **tiles)
        return grad_RSOI.sum(0) if parts > 1 else grad_RSOI[0]


def _cut(tiles: int, programs: int) -> tuple[int, int]:
    """Return how many of a sum's tiles make a part, and the number of parts: enough programs for a large GPU."""
    part_tiles = triton.cdiv(tiles, max(1, PROGRAMS // programs))
    return part_tiles, triton.cdiv(tiles, part_tiles)


def _halves(tensor: Tensor, product: torch.dtype) -> Tensor:
    """Return a float32 tensor as one of the product's type, or as two whose sum it is but for its last bits."""
    if product != torch.float32:
        return tensor.to(product).unsqueeze(0)
    halves = tensor.new_empty(2, *tensor.shape, dtype=SPLIT)
    halves[0] = tensor
    halves[1] = tensor - halves[0]
    return halves


class _ByteLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stored_BI: Tensor,
        spline_OK: Tensor,
        base_OI: Tensor,
        bias_O: Tensor,
        centers_G: Tensor,
        width: float,
        product: torch.dtype,
    ) -> Tensor:
        spline_OIG = spline_OK.unflatten(1, (-1, len(centers_G)))
        ctx.save_for_backward(stored_BI, centers_G)
        ctx.width, ctx.product = width, product
        if len(stored_BI) == 0:
            return bias_O.new_empty(0, len(bias_O))
        layer = _Layer(stored_BI, centers_G, len(bias_O), width, product)
        weight_SOI = torch.cat([spline_OIG.permute(2, 0, 1), base_OI.unsqueeze(0)])
        return layer.forward(_halves(layer.padded(weight_SOI), product), bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stored_BI, centers_G = ctx.saved_tensors
        (grad_BO,) = grads
        rows, outputs = grad_BO.shape
        if rows == 0:
            nothing_GOI = grad_BO.new_zeros(len(centers_G), outputs, stored_BI.shape[1])
            return None, nothing_GOI.permute(1, 2, 0).flatten(1), nothing_GOI[0], grad_BO.sum(0), None, None, None
        layer = _Layer(stored_BI, centers_G, outputs, ctx.width, ctx.product)
        grad_HBO = _halves(grad_BO.contiguous(), ctx.product)
        spline_GOI = layer.backward(grad_HBO, len(centers_G), is_silu=False)
        base_SOI = layer.backward(grad_HBO, 1, is_silu=True)
        return None, spline_GOI.permute(1, 2, 0).flatten(1), base_SOI[0], grad_BO.sum(0), None, None, None
