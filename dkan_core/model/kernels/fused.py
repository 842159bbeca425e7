"""Backend for CUDA: the basis is computed where the matrix product needs it, and never written to memory.

Each program computes a tile of the result. The basis of its inputs is made in registers and goes straight into the
tensor cores, in forward and in both gradients. The gradient of the weights is summed over parts of the rows, and the
parts are summed afterwards: without atomics, so that the same inputs give the same bits.

Float32 products are three products of TF32 parts ("3xTF32"), whose error is about that of float32.

Shape suffixes: N networks side by side, B rows, I inputs, G centers, O outputs, S parts of the rows.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F


class Tiling(NamedTuple):
    """How a pass is cut up."""

    rows: int
    """Rows of a tile."""

    basis: int
    """Basis functions (inputs times centers) of a tile."""

    outputs: int
    """Outputs of a tile, at most; more take several tiles, each of which computes the basis again."""

    warps: int
    stages: int


class Tilings(NamedTuple):
    """Those of the three passes."""

    forward: Tiling
    input_gradient: Tiling
    weight_gradient: Tiling


HALF = Tilings(Tiling(64, 64, 128, 4, 3), Tiling(64, 64, 128, 4, 1), Tiling(64, 64, 128, 4, 3))
"""What was the fastest, or near it, on an H100 for 32 to 768 inputs and 1 to 256 outputs."""

# A float32 product takes three of TF32, and its operands twice the room: what was the fastest on an H100 needs 72 to
# 312 bytes of a thread's stack by now, and on an A100 eight kilobytes. These are the largest tiles that need none, by
# the compiler's report (tests/model/test_fused_compiled.py); their speed is not measured.
FLOAT32 = Tilings(Tiling(64, 64, 128, 8, 3), Tiling(64, 64, 64, 4, 1), Tiling(32, 256, 64, 8, 3))
FLOAT32_AMPERE = Tilings(Tiling(64, 32, 64, 4, 3), Tiling(64, 64, 32, 4, 1), Tiling(32, 128, 64, 8, 3))
"""For GPUs with less shared memory than an H100."""

LARGE_TILES = 227 << 10
"""Bytes of shared memory from which on a GPU is given an H100's tiles. Those with less, also newer ones of compute
capability 12, keep operands of products in registers, which would not suffice."""

PROGRAMS = 264
"""Programs that share a pass, at least, where it can be cut so: two for each of an H100's 132 multiprocessors."""

# Triton's default until 3.10; 3.9 warns of that it will be another one.
OPTIONS = {"enable_fp_fusion": True}
"""Of every launch."""

VARYING = ["B", "N", "part_rows"]
"""Arguments that differ from batch to batch: a kernel is not compiled again for each kind of number."""

ALIGNMENT = 16
"""Bytes of one load. Weights that are views of a flat buffer may begin anywhere, and would take four times as many."""


@triton.jit
def _bumps(x_BI, centers_G, inverse_width):
    """Return the offsets from the centers, in widths, and the basis: both ``(B, I, G)``."""
    offset_BIG = (x_BI[:, :, None] - centers_G[None, None, :]) * inverse_width
    return offset_BIG, tl.exp(-offset_BIG * offset_BIG)


@triton.jit
def _tile(pointer, firsts, first_count, first_stride, seconds, second_count):
    """Load a tile, zero outside."""
    mask = (firsts[:, None] < first_count) & (seconds[None, :] < second_count)
    return tl.load(pointer + firsts[:, None].to(tl.int64) * first_stride + seconds[None, :], mask=mask, other=0.0)


@triton.jit(do_not_specialize=VARYING)
def _forward(
    x, weight, centers, out, inverse_width, B, I, O,  # noqa: E741
    TB: tl.constexpr, TI: tl.constexpr, G: tl.constexpr, TO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * TB + tl.arange(0, TB)
    outputs = tl.program_id(1) * TO + tl.arange(0, TO)
    x += network * B * I
    weight += network * O * I * G
    centers_G = tl.load(centers + tl.arange(0, G))
    sum_BO = tl.zeros((TB, TO), dtype=tl.float32)
    for first in range(0, I, TI):
        _, basis_BIG = _bumps(_tile(x, rows, B, I, first + tl.arange(0, TI), I), centers_G, inverse_width)
        weight_OK = _tile(weight, outputs, O, I * G, first * G + tl.arange(0, TI * G), I * G)
        basis_BK = tl.reshape(basis_BIG, (TB, TI * G)).to(weight_OK.dtype)
        sum_BO = tl.dot(basis_BK, tl.trans(weight_OK), sum_BO, input_precision=PRECISION)
    mask = (rows[:, None] < B) & (outputs[None, :] < O)
    tl.store(out + (network * B + rows[:, None]) * O + outputs[None, :], sum_BO, mask=mask)


@triton.jit(do_not_specialize=VARYING)
def _backward_weight(
    x, grad, centers, grad_weight, inverse_width, B, I, O, N, part_rows,  # noqa: E741
    TB: tl.constexpr, TI: tl.constexpr, G: tl.constexpr, TO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network = (tl.program_id(2) % N).to(tl.int64)
    part = (tl.program_id(2) // N).to(tl.int64)
    inputs = tl.program_id(0) * TI + tl.arange(0, TI)
    outputs = tl.program_id(1) * TO + tl.arange(0, TO)
    x += network * B * I
    grad += network * B * O
    centers_G = tl.load(centers + tl.arange(0, G))
    sum_KO = tl.zeros((TI * G, TO), dtype=tl.float32)
    last = tl.minimum(part * part_rows + part_rows, B)
    for first in range(part * part_rows, last, TB):
        rows = first + tl.arange(0, TB)
        _, basis_BIG = _bumps(_tile(x, rows, last, I, inputs, I), centers_G, inverse_width)
        grad_BO = _tile(grad, rows, last, O, outputs, O)
        basis_KB = tl.trans(tl.reshape(basis_BIG, (TB, TI * G)).to(grad_BO.dtype))
        sum_KO = tl.dot(basis_KB, grad_BO, sum_KO, input_precision=PRECISION)
    offsets = tl.program_id(0) * (TI * G) + tl.arange(0, TI * G)
    mask = (outputs[:, None] < O) & (offsets[None, :] < I * G)
    grad_weight += (part * N + network) * O * I * G
    tl.store(grad_weight + outputs[:, None].to(tl.int64) * (I * G) + offsets[None, :], tl.trans(sum_KO), mask=mask)


@triton.jit(do_not_specialize=VARYING)
def _backward_input(
    x, grad, weight, centers, grad_x, inverse_width, B, I, O,  # noqa: E741
    TB: tl.constexpr, TI: tl.constexpr, G: tl.constexpr, TO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * TB + tl.arange(0, TB)
    inputs = tl.program_id(1) * TI + tl.arange(0, TI)
    offsets = tl.program_id(1) * (TI * G) + tl.arange(0, TI * G)
    x += network * B * I
    grad += network * B * O
    weight += network * O * I * G
    sum_BK = tl.zeros((TB, TI * G), dtype=tl.float32)
    for first in range(0, O, TO):
        outputs = first + tl.arange(0, TO)
        grad_BO = _tile(grad, rows, B, O, outputs, O)
        weight_OK = _tile(weight, outputs, O, I * G, offsets, I * G)
        sum_BK = tl.dot(grad_BO, weight_OK, sum_BK, input_precision=PRECISION)
    centers_G = tl.load(centers + tl.arange(0, G))
    offset_BIG, basis_BIG = _bumps(_tile(x, rows, B, I, inputs, I), centers_G, inverse_width)
    slope_BI = tl.sum(tl.reshape(sum_BK, (TB, TI, G)) * basis_BIG * offset_BIG, axis=2) * (-2 * inverse_width)
    mask = (rows[:, None] < B) & (inputs[None, :] < I)
    tl.store(grad_x + (network * B + rows[:, None]) * I + inputs[None, :], slope_BI, mask=mask)


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``; the weights are float32.

    Under autocast the operands of the matrix products, forward and backward, have its type; the result and all that is
    summed are float32.

    Shape:
        - x_BI: ``(*, B, I)``; weight_OK: ``(*, O, I * G)``; centers_G: ``(G,)``; * for networks side by side
        - Output: ``(*, B, O)``
    """
    device = x_BI.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    networks = x_BI.shape[:-2]
    x_NBI = x_BI.float().reshape(math.prod(networks), *x_BI.shape[-2:])
    weight_NOK, padded_G = _pad_centers(weight_OK.reshape(math.prod(networks), *weight_OK.shape[-2:]), centers_G)
    # Triton launches on the current device, whatever that of the tensors; backward, autograd sees to it.
    with torch.cuda.device_of(x_NBI):
        out_NBO: Tensor = _RadialLinear.apply(x_NBI, weight_NOK, padded_G, width, product)
    return out_NBO.reshape(*networks, *out_NBO.shape[-2:])


def has_large_tiles(device: torch.device) -> bool:
    """Return whether a GPU has room for an H100's tiles; elsewhere, in Triton's interpreter, there always is."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= LARGE_TILES


def _pad_centers(weight_NOK: Tensor, centers_G: Tensor) -> tuple[Tensor, Tensor]:
    """Make the number of centers a power of two, as sizes of tiles are; the added ones have weight 0."""
    added = triton.next_power_of_2(len(centers_G)) - len(centers_G)
    if added == 0:
        return weight_NOK, centers_G
    weight_NOIG = weight_NOK.view(*weight_NOK.shape[:-1], -1, len(centers_G))
    return F.pad(weight_NOIG, (0, added)).flatten(-2), F.pad(centers_G, (0, added))


class _Product:
    """A product's sizes and operands, as the kernels take them."""

    def __init__(self, x_NBI: Tensor, weight_NOK: Tensor, centers_G: Tensor, width: float) -> None:
        self.x_NBI = x_NBI
        self.weight_NOK = weight_NOK
        self.centers_G = centers_G
        self.networks, self.rows, self.inputs = x_NBI.shape
        self.outputs = weight_NOK.shape[1]
        self.sizes = (1 / width, self.rows, self.inputs, self.outputs)
        self.is_float32 = weight_NOK.dtype == torch.float32
        float32 = FLOAT32 if has_large_tiles(x_NBI.device) else FLOAT32_AMPERE
        self.tilings = float32 if self.is_float32 else HALF

    def tiles(self, tiling: Tiling) -> dict[str, Any]:
        """Return the constants of a pass; matrix products take at least 16 by 16 numbers."""
        centers = len(self.centers_G)
        return {
            "TB": tiling.rows,
            "TI": max(1, 16 // centers, min(tiling.basis // centers, triton.next_power_of_2(self.inputs))),
            "G": centers,
            "TO": max(16, min(tiling.outputs, triton.next_power_of_2(self.outputs))),
            "PRECISION": "tf32x3" if self.is_float32 else "tf32",
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
            **OPTIONS,
        }

    def forward(self) -> Tensor:
        """Return the product ``(N, B, O)``."""
        tiles = self.tiles(self.tilings.forward)
        by_rows = triton.cdiv(self.rows, tiles["TB"])
        if by_rows * triton.cdiv(self.outputs, tiles["TO"]) * self.networks < PROGRAMS:
            tiles["TO"] = max(16, tiles["TO"] // 2)
        out_NBO = self.x_NBI.new_empty(self.networks, self.rows, self.outputs)
        if self.rows:
            grid = (by_rows, triton.cdiv(self.outputs, tiles["TO"]), self.networks)
            _forward[grid](self.x_NBI, self.weight_NOK, self.centers_G, out_NBO, *self.sizes, **tiles)
        return out_NBO

    def input_gradient(self, grad_NBO: Tensor) -> Tensor:
        """Return the gradient of the inputs, given that of the product."""
        tiles = self.tiles(self.tilings.input_gradient)
        grad_x_NBI = torch.empty_like(self.x_NBI)
        if self.rows:
            grid = (triton.cdiv(self.rows, tiles["TB"]), triton.cdiv(self.inputs, tiles["TI"]), self.networks)
            tensors = (self.x_NBI, grad_NBO, self.weight_NOK, self.centers_G, grad_x_NBI)
            _backward_input[grid](*tensors, *self.sizes, **tiles)
        return grad_x_NBI

    def weight_gradient(self, grad_NBO: Tensor) -> Tensor:
        """Return the gradient of the weights, given that of the product; it is summed over parts of the rows."""
        tiles = self.tiles(self.tilings.weight_gradient)
        across = (triton.cdiv(self.inputs, tiles["TI"]), triton.cdiv(self.outputs, tiles["TO"]))
        wanted = triton.cdiv(PROGRAMS, across[0] * across[1] * self.networks)
        part_rows = triton.cdiv(triton.cdiv(self.rows, wanted), tiles["TB"]) * tiles["TB"]
        parts = triton.cdiv(self.rows, max(1, part_rows))
        grad_SNOK = torch.empty(parts, *self.weight_NOK.shape, device=grad_NBO.device)
        if parts:
            tensors = (self.x_NBI, grad_NBO, self.centers_G, grad_SNOK)
            grid = (*across, parts * self.networks)
            _backward_weight[grid](*tensors, *self.sizes, self.networks, part_rows, **tiles)
        return grad_SNOK.sum(0)


class _RadialLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NBI: Tensor, weight_NOK: Tensor, centers_G: Tensor, width: float, product: torch.dtype
    ) -> Tensor:
        operands = (_aligned(x_NBI), _aligned(weight_NOK.to(product)), centers_G)
        ctx.save_for_backward(*operands)
        ctx.width = width
        return _Product(*operands, width).forward()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x_NBI, weight_NOK, centers_G = ctx.saved_tensors
        product = _Product(x_NBI, weight_NOK, centers_G, ctx.width)
        grad_NBO = _aligned(grads[0].to(product.weight_NOK.dtype))
        grad_x_NBI = product.input_gradient(grad_NBO) if ctx.needs_input_grad[0] else None
        return grad_x_NBI, product.weight_gradient(grad_NBO), None, None, None


def _aligned(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
