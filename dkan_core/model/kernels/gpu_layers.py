"""Whole layers on a GPU: in one pass where that is right and faster, else not at all, and they are computed in parts.

Shape suffixes: N networks side by side, B rows, I inputs, O outputs, U inputs over all networks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model.decoding import decode_scores
from dkan_core.model.dropout import keep_factors
from dkan_core.model.kernels import choice, compilation, eager, verified
from dkan_core.model.kernels.choice import Compute, Name, Operation, RadialLinear

TOLERANCES = {**verified.TOLERANCES, torch.float32: 5e-5}
"""Float32 products are of 16 bits in ``fused_bytes``: 8e-6 to 2e-5 was measured on an H200."""

MAX_BASIS = 16_384
"""Values of a row's basis, at most: with more, the registers of ``fused_hidden`` do not suffice."""

ALL_CELLS = 1 << 32


def byte_layer(
    stored_BI: Tensor, spline_OK: Tensor, base_OI: Tensor, bias_O: Tensor, centers_G: Tensor, width: float
) -> Tensor | None:
    """Return a first layer of stored bytes; None where it is to be computed in parts. See ``fused_bytes``."""
    if len(stored_BI) == 0 or stored_BI.shape[1] == 0:
        return None
    arguments = (stored_BI, spline_OK, base_OI, bias_O, centers_G, width)
    shape = (stored_BI.shape[1], len(bias_O), len(centers_G))
    name = choice.name_of_best(BYTE_LAYER, shape, arguments[:1], arguments[1:4], arguments[4:])
    if name is None:
        return compilation.stand_in(len(stored_BI), len(bias_O), device=stored_BI.device)
    return _fused_byte_layer(*arguments) if name == "fused" else None


def hidden_layer(
    x_NBI: Tensor,
    row_key_B: Tensor | None,
    weights: Sequence[Tensor],
    centers_G: Tensor,
    width: float,
    unit_key_U: Tensor,
    dropped: int,
) -> Tensor | None:
    """Return a hidden layer ``(N, B, O)``; None where it is to be computed in parts. See ``fused_hidden``.

    Args:
        x_NBI: Inputs.
        row_key_B: By which inputs are dropped; None where none are.
        weights: Of LayerNorm weight and bias, basis, base and bias, as ``native_hidden.hidden_layer`` takes them.
        centers_G: Where the Gaussians lie.
        width: Their width.
        unit_key_U: Keys of the inputs.
        dropped: Share of the inputs to drop, in units of 2**-32.
    """
    networks, rows, inputs = x_NBI.shape
    centers = len(centers_G)
    outputs = weights[2].shape[-2]
    # A single input is its own mean: the formula has a gradient of exactly 0 there, which rounding is measured against.
    fits = inputs > 1 and outputs == 1 and centers & (centers - 1) == 0 and inputs * centers <= MAX_BASIS
    if rows == 0 or not fits:
        return None
    x_BU = x_NBI.transpose(0, 1).flatten(1)
    flat = tuple(weight.reshape(networks, -1) for weight in weights)
    constants = (centers_G, width, unit_key_U, dropped)
    name = choice.name_of_best(HIDDEN_LAYER, (networks, inputs, 1, centers), (x_BU, row_key_B), flat, constants)
    if name is None:
        return compilation.stand_in(networks, rows, 1, device=x_BU.device)
    return _fused_hidden_layer(x_BU, row_key_B, *flat, *constants).unsqueeze(2) if name == "fused" else None


def _fused_byte_layer(
    stored_BI: Tensor, spline_OK: Tensor, base_OI: Tensor, bias_O: Tensor, centers_G: Tensor, width: float
) -> Tensor:
    from dkan_core.model.kernels import fused_bytes

    return fused_bytes.byte_layer(stored_BI, spline_OK, base_OI, bias_O, centers_G, width)


def _fused_hidden_layer(*arguments: Any) -> Tensor:
    from dkan_core.model.kernels import fused_hidden

    return fused_hidden.hidden_layer(*arguments)


def _byte_layer_by(radial_linear: RadialLinear) -> Compute:
    def compute(
        stored_BI: Tensor, spline_OK: Tensor, base_OI: Tensor, bias_O: Tensor, centers_G: Tensor, width: float
    ) -> Tensor:
        score_BI = decode_scores(stored_BI)
        return radial_linear(score_BI, spline_OK, centers_G, width) + F.linear(F.silu(score_BI), base_OI, bias_O)

    return compute


def _hidden_layer_by(radial_linear: RadialLinear) -> Compute:
    def compute(x_BU: Tensor, row_key_B: Tensor | None, *arguments: Any) -> Tensor:
        *weights, bias_N1, centers_G, width, unit_key_U, dropped = arguments
        norm_weight_NI, norm_bias_NI, spline_NK, base_NI = weights
        if row_key_B is not None:
            x_BU = x_BU * keep_factors(row_key_B, unit_key_U, dropped / ALL_CELLS, x_BU.dtype)
        x_NBI = x_BU.unflatten(1, (len(bias_N1), -1)).transpose(0, 1)
        normed_NBI = F.layer_norm(x_NBI, x_NBI.shape[-1:]) * norm_weight_NI[:, None] + norm_bias_NI[:, None]
        basis_NB1 = radial_linear(normed_NBI, spline_NK[:, None], centers_G, width)
        out_NB: Tensor = (basis_NB1 + F.silu(x_NBI) @ base_NI[..., None]).squeeze(2) + bias_N1
        return out_NB

    return compute


def _layer(name: str, fused: Compute, computed_by: Callable[[RadialLinear], Compute]) -> Operation:
    candidates: dict[Name, Compute] = {"fused": fused, "parts": computed_by(choice.compute_fused)}
    return Operation(name, computed_by(eager.radial_linear), candidates, "parts", TOLERANCES)


BYTE_LAYER = _layer("byte layer", _fused_byte_layer, _byte_layer_by)
HIDDEN_LAYER = _layer("hidden layer", _fused_hidden_layer, _hidden_layer_by)
