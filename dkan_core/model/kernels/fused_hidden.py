"""A last layer with one output on CUDA in one pass each way: dropout, LayerNorm, basis, SiLU and the sums over both.

Nothing that has more than one number for each input is written to memory: backward, all of it is computed again from
the inputs. The gradient of the weights is summed over parts of the rows, and the parts are summed afterwards:
without atomics, so that the same inputs give the same bits. What is dropped is a function of row and unit, as in
``dropout.keep_factors``. All is float32: there are no matrix products here.

Shape suffixes: N networks side by side, B rows, I inputs, G centers, W weights of a network, R parts of the rows.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dkan_core.model.dropout import FIRST_FACTOR, LOGICAL, SECOND_FACTOR, SHIFT
from dkan_core.model.kernels.fused import OPTIONS, PROGRAMS
from dkan_core.model.kernels.fused_bytes import ROOT_LOG2_E

NORM_EPSILON = 1e-5
"""As torch's LayerNorm has it."""

TILE = 8192
"""Values of the basis that a program holds at a time."""

WARPS = 8

VARYING = ["B", "part_rows", "dropped", "keep_scale"]


class Drop(NamedTuple):
    """What is dropped; nothing where there are no keys of rows."""

    row_key_B: Tensor | None
    unit_key_U: Tensor
    dropped: int


@triton.jit
def _kept(row_keys, unit_keys, mask, dropped, keep_scale, FIRST, SECOND, BITS: tl.constexpr, LOW: tl.constexpr):
    """Return what each input is multiplied by: 0 where it is dropped; see ``dropout.keep_factors``."""
    bits = (row_keys ^ unit_keys) * FIRST
    bits = (bits ^ ((bits >> BITS) & LOW)) * SECOND
    return tl.where(mask & (bits >= dropped), keep_scale, 0.0)


@triton.jit
def _normed(x_BI, mask_BI, I, epsilon):  # noqa: E741
    """Return rows with mean 0 and variance 1, 0 outside, and what they were divided by, inverted."""
    mean_B = tl.sum(x_BI, axis=1) / I
    centered_BI = tl.where(mask_BI, x_BI - mean_B[:, None], 0.0)
    scale_B = 1.0 / tl.sqrt(tl.sum(centered_BI * centered_BI, axis=1) / I + epsilon)
    return centered_BI * scale_B[:, None], scale_B


@triton.jit(do_not_specialize=VARYING)
def _forward(
    x, row_keys, unit_keys, norm_weight, norm_bias, spline, base, bias, centers, out,
    scale, epsilon, dropped, keep_scale, B, N, I,  # noqa: E741
    DROPS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(1)
    rows = (tl.program_id(0) * TB + tl.arange(0, TB)).to(tl.int64)
    inputs = tl.arange(0, TI)
    slots = tl.arange(0, G)
    own = network * I + inputs
    inside = inputs < I
    mask_BI = (rows[:, None] < B) & inside[None, :]
    x_BI = tl.load(x + rows[:, None] * (N * I) + own[None, :], mask_BI, 0.0)
    if DROPS:
        row_key_B = tl.load(row_keys + rows, rows < B, 0)
        unit_key_I = tl.load(unit_keys + own, inside, 0)
        x_BI *= _kept(row_key_B[:, None], unit_key_I[None, :], mask_BI, dropped, keep_scale, FIRST, SECOND, BITS, LOW)
    normed_BI, _ = _normed(x_BI, mask_BI, I, epsilon)
    norm_weight_I = tl.load(norm_weight + own, inside, 0.0)
    given_BI = normed_BI * norm_weight_I[None, :] + tl.load(norm_bias + own, inside, 0.0)[None, :]
    centers_G = tl.load(centers + slots)
    spline_IG = tl.load(spline + own[:, None] * G + slots[None, :], inside[:, None], 0.0)
    offset_BIG = (given_BI[:, :, None] - centers_G[None, None, :]) * scale
    sum_BI = tl.sum(tl.exp2(-offset_BIG * offset_BIG) * spline_IG[None, :, :], axis=2)
    sum_BI += x_BI * tl.sigmoid(x_BI) * tl.load(base + own, inside, 0.0)[None, :]
    tl.store(out + network.to(tl.int64) * B + rows, tl.sum(sum_BI, axis=1) + tl.load(bias + network), rows < B)


@triton.jit(do_not_specialize=VARYING)
def _backward(
    x, grad, row_keys, unit_keys, norm_weight, norm_bias, spline, base, centers, grad_x, grad_weight,
    scale, epsilon, dropped, keep_scale, B, N, I, part_rows,  # noqa: E741
    DROPS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BITS: tl.constexpr, LOW: tl.constexpr,
    TB: tl.constexpr, TI: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    network = tl.program_id(1)
    inputs = tl.arange(0, TI)
    slots = tl.arange(0, G)
    own = network * I + inputs
    inside = inputs < I
    centers_G = tl.load(centers + slots)
    spline_IG = tl.load(spline + own[:, None] * G + slots[None, :], inside[:, None], 0.0)
    base_I = tl.load(base + own, inside, 0.0)
    norm_weight_I = tl.load(norm_weight + own, inside, 0.0)
    norm_bias_I = tl.load(norm_bias + own, inside, 0.0)
    unit_key_I = tl.load(unit_keys + own, inside, 0) if DROPS else inputs
    sum_spline_BIG = tl.zeros((TB, TI, G), dtype=tl.float32)
    sum_base_BI = tl.zeros((TB, TI), dtype=tl.float32)
    sum_norm_weight_BI = tl.zeros((TB, TI), dtype=tl.float32)
    sum_norm_bias_BI = tl.zeros((TB, TI), dtype=tl.float32)
    last = tl.minimum(part * part_rows + part_rows, B)
    for first in range(part * part_rows, last, TB):
        rows = (first + tl.arange(0, TB)).to(tl.int64)
        mask_BI = (rows[:, None] < last) & inside[None, :]
        offsets_BI = rows[:, None] * (N * I) + own[None, :]
        x_BI = tl.load(x + offsets_BI, mask_BI, 0.0)
        grad_B1 = tl.load(grad + network.to(tl.int64) * B + rows, rows < last, 0.0)[:, None]
        kept_BI = tl.where(mask_BI, 1.0, 0.0)
        if DROPS:
            row_key_B = tl.load(row_keys + rows, rows < last, 0)
            kept_BI = _kept(
                row_key_B[:, None], unit_key_I[None, :], mask_BI, dropped, keep_scale, FIRST, SECOND, BITS, LOW
            )
        x_BI *= kept_BI
        normed_BI, scale_B = _normed(x_BI, mask_BI, I, epsilon)
        given_BI = normed_BI * norm_weight_I[None, :] + norm_bias_I[None, :]
        offset_BIG = (given_BI[:, :, None] - centers_G[None, None, :]) * scale
        basis_BIG = tl.exp2(-offset_BIG * offset_BIG)
        sum_spline_BIG += basis_BIG * grad_B1[:, :, None]
        # The derivative of 2 ** -t ** 2 is -2 ln 2 t 2 ** -t ** 2.
        slope_BI = tl.sum(basis_BIG * offset_BIG * spline_IG[None, :, :], axis=2) * (-1.3862943611198906 * scale)
        grad_given_BI = tl.where(mask_BI, slope_BI * grad_B1, 0.0)
        sum_norm_weight_BI += grad_given_BI * normed_BI
        sum_norm_bias_BI += grad_given_BI
        grad_normed_BI = grad_given_BI * norm_weight_I[None, :]
        mean_B = tl.sum(grad_normed_BI, axis=1) / I
        along_B = tl.sum(grad_normed_BI * normed_BI, axis=1) / I
        sigmoid_BI = tl.sigmoid(x_BI)
        sum_base_BI += x_BI * sigmoid_BI * grad_B1
        grad_base_BI = grad_B1 * base_I[None, :] * sigmoid_BI * (1 + x_BI * (1 - sigmoid_BI))
        through_norm_BI = (grad_normed_BI - mean_B[:, None] - normed_BI * along_B[:, None]) * scale_B[:, None]
        tl.store(grad_x + offsets_BI, (through_norm_BI + grad_base_BI) * kept_BI, mask_BI)
    # One after the other: the norm's weight and bias, the basis' weights, those of SiLU.
    grad_weight += (part * N + network).to(tl.int64) * I * (G + 3)
    tl.store(grad_weight + inputs, tl.sum(sum_norm_weight_BI, axis=0), inside)
    tl.store(grad_weight + I + inputs, tl.sum(sum_norm_bias_BI, axis=0), inside)
    offsets_IG = 2 * I + inputs[:, None] * G + slots[None, :]
    tl.store(grad_weight + offsets_IG, tl.sum(sum_spline_BIG, axis=0), inside[:, None])
    tl.store(grad_weight + (2 + G) * I + inputs, tl.sum(sum_base_BI, axis=0), inside)


def hidden_layer(
    x_BU: Tensor,
    row_key_B: Tensor | None,
    norm_weight_NI: Tensor,
    norm_bias_NI: Tensor,
    spline_NK: Tensor,
    base_NI: Tensor,
    bias_N1: Tensor,
    centers_G: Tensor,
    width: float,
    unit_key_U: Tensor,
    dropped: int,
) -> Tensor:
    """Return a layer's output from dropout to the sum with the base branch.

    Args:
        x_BU: The inputs of one network after those of the other.
        row_key_B: Keys of the rows, by which inputs are dropped; None where none are.
        norm_weight_NI: Of LayerNorm.
        norm_bias_NI: Of LayerNorm.
        spline_NK: Weights of the basis, those of an input's centers next to each other.
        base_NI: Weights of SiLU.
        bias_N1: Added to the output.
        centers_G: Where the Gaussians lie; their number is a power of two.
        width: Their width.
        unit_key_U: Keys of the inputs.
        dropped: Share of the inputs to drop, in units of 2**-32.

    Shape:
        - Output: ``(N, B)``
    """
    drop = Drop(row_key_B, unit_key_U, dropped)
    weights = (norm_weight_NI, norm_bias_NI, spline_NK, base_NI, bias_N1)
    with torch.cuda.device_of(x_BU):
        out_NB: Tensor = _HiddenLayer.apply(x_BU, *weights, centers_G, width, drop)
    return out_NB


class _HiddenLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BU: Tensor, *arguments: Any) -> Tensor:
        *weights, bias_N1, centers_G, width, drop = arguments
        x_BU = x_BU.float().contiguous()
        rows, networks = len(x_BU), len(bias_N1)
        inputs = x_BU.shape[1] // networks
        ctx.save_for_backward(x_BU, *weights, centers_G)
        ctx.width, ctx.drop = width, drop
        out_NB = x_BU.new_empty(networks, rows)
        if rows:
            constants = _constants(inputs, centers_G, drop)
            keys = _keys(drop)
            tensors = (x_BU, *keys, *weights, bias_N1, centers_G, out_NB)
            grid = (triton.cdiv(rows, constants["TB"]), networks)
            _forward[grid](*tensors, *_numbers(width, drop), rows, networks, inputs, **constants)
        return out_NB

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BU, *weights, centers_G = ctx.saved_tensors
        grad_NB = grads[0].float().contiguous()
        networks, rows = grad_NB.shape
        inputs = x_BU.shape[1] // networks
        constants = _constants(inputs, centers_G, ctx.drop)
        part_rows = triton.cdiv(triton.cdiv(rows, max(1, PROGRAMS // networks)), constants["TB"]) * constants["TB"]
        parts = triton.cdiv(rows, max(1, part_rows))
        grad_x_BU = torch.empty_like(x_BU)
        grad_RNW = x_BU.new_empty(parts, networks, inputs * (len(centers_G) + 3))
        if rows:
            tensors = (x_BU, grad_NB, *_keys(ctx.drop), *weights, centers_G, grad_x_BU, grad_RNW)
            numbers = (*_numbers(ctx.width, ctx.drop), rows, networks, inputs, part_rows)
            _backward[parts, networks](*tensors, *numbers, **constants)
        sizes = (inputs, inputs, inputs * len(centers_G), inputs)
        return grad_x_BU, *grad_RNW.sum(0).split(sizes, dim=1), grad_NB.sum(1, keepdim=True), None, None, None


def _constants(inputs: int, centers_G: Tensor, drop: Drop) -> dict[str, Any]:
    """Return what the kernels are compiled for."""
    padded = triton.next_power_of_2(inputs)
    return {
        "DROPS": drop.row_key_B is not None,
        "FIRST": FIRST_FACTOR,
        "SECOND": SECOND_FACTOR,
        "BITS": SHIFT,
        "LOW": LOGICAL,
        "TB": max(1, TILE // (padded * len(centers_G))),
        "TI": padded,
        "G": len(centers_G),
        "num_warps": WARPS,
        **OPTIONS,
    }


def _numbers(width: float, drop: Drop) -> tuple[float, float, int, float]:
    return ROOT_LOG2_E / width, NORM_EPSILON, drop.dropped - (1 << 31), 1 / (1 - drop.dropped / (1 << 32))


def _keys(drop: Drop) -> tuple[Tensor, Tensor]:
    """Return the keys of rows and units; any where nothing is dropped."""
    return (drop.unit_key_U if drop.row_key_B is None else drop.row_key_B), drop.unit_key_U
