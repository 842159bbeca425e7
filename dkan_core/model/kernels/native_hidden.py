"""A hidden layer in one pass of the native extension each way: dropout, LayerNorm, basis and linear maps.

Shape suffixes: N networks side by side, B rows, I inputs, O outputs, G centers, K = I * G, U units of all networks.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dkan_core.model.kernels.native import OPERATIONS, BelowAutograd, can_compute, register
from dkan_core.native.library import MAX_CENTERS, MAX_OUTPUTS, MAX_PRODUCT_WEIGHTS, HiddenArguments, require_library

LAYER_NORM_EPSILON = 1e-5
"""Torch's own."""


def can_compute_hidden(x_NBI: Tensor, spline_weight_NOK: Tensor, centers_G: Tensor) -> bool:
    """Return whether ``hidden_layer`` takes these, and is the fastest."""
    inputs, outputs = x_NBI.shape[-1], spline_weight_NOK.shape[-2]
    fits = len(centers_G) <= MAX_CENTERS and inputs > 0
    is_fastest = outputs <= MAX_OUTPUTS or inputs * outputs <= MAX_PRODUCT_WEIGHTS
    return fits and is_fastest and can_compute(x_NBI, spline_weight_NOK)


def hidden_layer(
    x_NBI: Tensor,
    weights: Sequence[Tensor],
    centers_G: Tensor,
    width: float,
    row_key_B: Tensor | None,
    unit_key_U: Tensor,
    dropped: int,
) -> Tensor:
    """Return dropout, LayerNorm, basis and linear map, plus SiLU and linear map.

    Args:
        x_NBI: Outputs of the layer before.
        weights: Weight and bias of LayerNorm ``(N, I)``, weights of the basis ``(N, O, I * G)`` and of the SiLU
            ``(N, O, I)``, and what is added to the result ``(N, O)``; each may have dimensions of size 1 in between.
        centers_G: Where the Gaussians lie.
        width: Their width.
        row_key_B: Keys of the rows for dropout (``model.dropout``); None if nothing is dropped.
        unit_key_U: Keys of the units over all networks.
        dropped: Share of cells to drop, in units of 2**-32.

    Shape:
        - Output: ``(N, B, O)``
    """
    out_NBO: Tensor = torch.ops.dkan.hidden_layer(x_NBI, *weights, centers_G, width, row_key_B, unit_key_U, dropped)
    return out_NBO


def _hidden_layer(
    x_NBI: Tensor,
    norm_weight_NI: Tensor,
    norm_bias_NI: Tensor,
    spline_weight_NOK: Tensor,
    base_weight_NOI: Tensor,
    base_bias_NO: Tensor,
    centers_G: Tensor,
    width: float,
    row_key_B: Tensor | None,
    unit_key_U: Tensor,
    dropped: int,
) -> Tensor:
    out_NBO = x_NBI.new_empty(*x_NBI.shape[:2], spline_weight_NOK.shape[-2])
    tensors = (x_NBI, norm_weight_NI, norm_bias_NI, spline_weight_NOK, base_weight_NOI, base_bias_NO, centers_G)
    call = HiddenCall(tensors, width, row_key_B, unit_key_U, dropped)
    call.arguments.out = out_NBO.data_ptr()
    require_library().dkan_hidden_forward(ctypes.byref(call.arguments), torch.get_num_threads())
    return out_NBO


def _hidden_layer_backward(
    grad_NBO: Tensor,
    x_NBI: Tensor,
    norm_weight_NI: Tensor,
    norm_bias_NI: Tensor,
    spline_weight_NOK: Tensor,
    base_weight_NOI: Tensor,
    base_bias_NO: Tensor,
    centers_G: Tensor,
    width: float,
    row_key_B: Tensor | None,
    unit_key_U: Tensor,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights = (norm_weight_NI, norm_bias_NI, spline_weight_NOK, base_weight_NOI, base_bias_NO)
    gradients = tuple(torch.zeros_like(each, memory_format=torch.contiguous_format) for each in weights)
    # What asks about one of many labels has a gradient at its output alone.
    asked_O = grad_NBO.flatten(0, 1).any(dim=0)
    if asked_O.any() and not asked_O.all():
        narrow = (spline_weight_NOK[..., asked_O, :], base_weight_NOI[..., asked_O, :], base_bias_NO[..., asked_O])
        asked_NBO = grad_NBO[..., asked_O]
        found = _hidden_layer_backward(
            asked_NBO, x_NBI, norm_weight_NI, norm_bias_NI, *narrow, centers_G, width, row_key_B, unit_key_U, dropped
        )
        for whole, part in zip(gradients[2:4], found[3:5], strict=True):
            whole[..., asked_O, :] = part
        gradients[4][..., asked_O] = found[5]
        return (*found[:3], *gradients[2:])  # type: ignore[return-value] # as many as there are weights
    call = HiddenCall((x_NBI, *weights, centers_G), width, row_key_B, unit_key_U, dropped)
    grad_NBO = grad_NBO.contiguous()
    grad_x_NBI = torch.empty_like(call.x_NBI)
    call.arguments.grad_out = grad_NBO.data_ptr()
    call.point_to_gradients(grad_x_NBI, gradients)
    require_library().dkan_hidden_backward(ctypes.byref(call.arguments), torch.get_num_threads())
    return (grad_x_NBI, *gradients)  # type: ignore[return-value] # as many as there are weights


HIDDEN_ARGUMENTS = (
    "Tensor norm_weight, Tensor norm_bias, Tensor spline_weight, Tensor base_weight, Tensor base_bias, "
    "Tensor centers, float hidden_width, Tensor? row_key, Tensor unit_key, int dropped"
)
register(
    f"hidden_layer(Tensor x, {HIDDEN_ARGUMENTS}) -> Tensor",
    _hidden_layer,
    lambda x_NBI, _, __, spline_weight_NOK, *___: x_NBI.new_empty(*x_NBI.shape[:2], spline_weight_NOK.shape[-2]),
)
register(
    f"hidden_layer_backward(Tensor grad, Tensor x, {HIDDEN_ARGUMENTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _hidden_layer_backward,
    lambda _, x_NBI, *rest: (
        torch.empty_like(x_NBI),
        *(torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in rest[:5]),
    ),
)


class _HiddenLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.width, row_key_B, unit_key_U, ctx.dropped = arguments
        ctx.save_for_backward(*tensors, row_key_B, unit_key_U)
        with BelowAutograd():
            out_NBO: Tensor = torch.ops.dkan.hidden_layer(*arguments)
        return out_NBO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, row_key_B, unit_key_U = ctx.saved_tensors
        backward = torch.ops.dkan.hidden_layer_backward
        gradients = backward(grads[0], *tensors, ctx.width, row_key_B, unit_key_U, ctx.dropped)
        return (*gradients, None, None, None, None, None)


OPERATIONS.impl("hidden_layer", _HiddenLayer.apply, "Autograd")


class HiddenCall:
    """The arguments of both passes, and the tensors that their pointers point into."""

    def __init__(
        self, tensors: tuple[Tensor, ...], width: float, row_key_B: Tensor | None, unit_key_U: Tensor, dropped: int
    ) -> None:
        x_NBI, *weights = tensors
        # The networks' rows may lie side by side; the gradient then does, too.
        if x_NBI.stride(-1) != 1 or torch.empty_like(x_NBI).stride() != x_NBI.stride():
            x_NBI = x_NBI.contiguous()
        keys = [] if row_key_B is None else [row_key_B.contiguous(), unit_key_U.contiguous()]
        self.x_NBI = x_NBI
        self.kept = [each.contiguous() for each in weights] + keys
        pointers = [each.data_ptr() for each in self.kept]
        networks, rows, inputs = x_NBI.shape
        self.arguments = HiddenArguments(
            x=x_NBI.data_ptr(),
            norm_weight=pointers[0],
            norm_bias=pointers[1],
            spline=pointers[2],
            base=pointers[3],
            bias=pointers[4],
            centers=pointers[5],
            row_keys=pointers[6] if keys else None,
            unit_keys=pointers[7] if keys else None,
            network_stride=x_NBI.stride(0),
            row_stride=x_NBI.stride(1),
            networks=networks,
            rows=rows,
            inputs=inputs,
            outputs=weights[2].shape[-2],
            num_centers=len(weights[5]),
            threshold=dropped - (1 << 31),
            kept_factor=1 / (1 - dropped / (1 << 32)),
            inverse_width=1 / width,
            epsilon=LAYER_NORM_EPSILON,
        )

    def point_to_gradients(self, grad_x_NBI: Tensor, gradients: Sequence[Tensor]) -> None:
        """Write the gradient of the inputs into these, and add those of the weights to them."""
        arguments = self.arguments
        arguments.grad_x = grad_x_NBI.data_ptr()
        arguments.grad_norm_weight, arguments.grad_norm_bias, *others = (each.data_ptr() for each in gradients)
        arguments.grad_spline, arguments.grad_base, arguments.grad_bias = others
