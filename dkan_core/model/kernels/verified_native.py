"""Use the native passes only where they are right: they are compiled by the user's compiler, for the user's processor.

What they compute is compared with the formula once for each shape, on random numbers. If it differs, a warning says so
and ``recompute`` is used.
"""

import functools
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model.dropout import keep_factors
from dkan_core.model.kernels import eager, native, native_hidden
from dkan_core.model.kernels.native_input import (
    EmbeddedColumn,
    InputLayout,
    InputWeights,
    OneHotGroup,
    input_layer,
)
from dkan_core.model.kernels.native_step import Gradients, Loss, training_step
from dkan_core.model.kernels.verified import relative_error
from dkan_core.native.library import has_matrix_unit, require_library

CHECK_ROWS = 70
"""Two tasks of rows, the last one not full."""

TOLERANCE, PARTS_TOLERANCE, BF16_TOLERANCE = 4e-6, 4e-4, 0.1
"""Norm of the error over that of the result. At most 6e-7 was measured; 1e-5 where two bfloat16 numbers are the parts
of a float32 one, and 5e-3 where one stands for it, but 4e-5 and 4e-2 of layers of six units or 32 centers. A pass that
is wrong is off by about 1."""

ROUNDING = 4
"""Times the error of the same formula in float32, which counts where that is more: gradients of a LayerNorm over few
units are the rest of sums that nearly cancel, and over a single one they are 0."""

DROPPED = 1 << 30
"""A quarter of the cells, in units of 2**-32."""

logger = logging.getLogger(__name__)

# The checks are made in a mode of their own: their first caller may be scoring, and they compare gradients, too.


@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def basis_is_right(centers: int) -> bool:
    """Return whether the basis and its gradient are what the formula says."""

    def exact(x_BI: Tensor, weight_OK: Tensor) -> Tensor:
        return eager.radial_linear(x_BI, weight_OK, _grid(centers).to(x_BI.dtype), 0.6)

    def fused(x_BI: Tensor, weight_OK: Tensor) -> Tensor:
        return native.radial_linear(x_BI, weight_OK, _grid(centers), 0.6)

    return _is_right("basis", fused, exact, [(CHECK_ROWS, 5), (6, 5 * centers)])


@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def hidden_layer_is_right(networks: int, inputs: int, outputs: int, centers: int) -> bool:
    """Return whether the pass of a hidden layer and its gradients are what the formula says, dropout included."""
    grid_G, width = _grid(centers), 4 / (centers - 1)
    keys = torch.Generator().manual_seed(1)
    row_key_B, unit_key_U = (
        torch.randint(-(1 << 31), 1 << 31, (size,), generator=keys).int() for size in (CHECK_ROWS, networks * inputs)
    )

    def fused(x_NBI: Tensor, *weights: Tensor) -> Tensor:
        return native_hidden.hidden_layer(x_NBI, weights, grid_G, width, row_key_B, unit_key_U, DROPPED)

    def exact(x_NBI: Tensor, *weights: Tensor) -> Tensor:
        return _exact_hidden(x_NBI, weights, grid_G, width, row_key_B, unit_key_U)

    sizes = [(CHECK_ROWS, inputs), *_hidden_sizes(inputs, outputs, centers)]
    return _is_right("hidden layer", fused, exact, sizes, networks=networks)


def _hidden_sizes(inputs: int, outputs: int, centers: int) -> list[tuple[int, ...]]:
    return [(inputs,), (inputs,), (outputs, inputs * centers), (outputs, inputs), (outputs,)]


def _exact_hidden(
    x_NBI: Tensor,
    weights: Sequence[Tensor],
    grid_G: Tensor,
    width: float,
    row_key_B: Tensor,
    unit_key_U: Tensor,
) -> Tensor:
    norm_weight, norm_bias, spline_weight, base_weight, base_bias = weights
    networks, rows, inputs = x_NBI.shape
    factor_BU = keep_factors(row_key_B, unit_key_U, DROPPED / (1 << 32), x_NBI.dtype)
    x_NBI = x_NBI * factor_BU.view(rows, networks, inputs).transpose(0, 1)
    normed_NBI = F.layer_norm(x_NBI, (inputs,)) * norm_weight.unsqueeze(1) + norm_bias.unsqueeze(1)
    spline_NBO = eager.radial_linear(normed_NBI, spline_weight, grid_G.to(x_NBI.dtype), width)
    return spline_NBO + torch.matmul(F.silu(x_NBI), base_weight.mT) + base_bias.unsqueeze(1)


@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def table_sum_is_right() -> bool:
    """Return whether the sum of a table's rows and its gradient are what the formula says."""
    indices_BT = torch.randint(40, (CHECK_ROWS, 3), generator=torch.Generator().manual_seed(1))

    def fused(table_VH: Tensor) -> Tensor:
        return native.table_sum(indices_BT.int(), table_VH)

    return _is_right("table sum", fused, lambda table_VH: table_VH[indices_BT].sum(1), [(40, 70)])


@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def input_layer_is_right() -> bool:
    """Return whether a first layer and its gradients are what the formula says."""
    codes_BC, layout = _codes_and_layout()

    def fused(x_BD: Tensor, *weights: Tensor) -> Tensor:
        spline_OK, base_OI, bias_O, one_hot_VO, *tables = weights
        layer = InputWeights(spline_OK, base_OI, bias_O, one_hot_VO, tables)
        return input_layer(x_BD, torch.zeros(256), codes_BC, layer, (_grid(8), 0.6), layout)

    def exact(x_BD: Tensor, *weights: Tensor) -> Tensor:
        return _exact_input(x_BD, codes_BC, weights)

    return _is_right("input layer", fused, exact, [(CHECK_ROWS, 2), *_input_sizes(70)])


def _codes_and_layout() -> tuple[Tensor, Tensor]:
    codes_BC = torch.randint(9, (CHECK_ROWS, 2), generator=torch.Generator().manual_seed(1)).int()
    columns = [EmbeddedColumn(0, 9, 3), EmbeddedColumn(1, 9, 1)]
    groups = [OneHotGroup(0, 9, 9, [(0, 1)]), OneHotGroup(9, 5, 5, [(1, 1)]), OneHotGroup(14, 81, 0, [(0, 9), (1, 1)])]
    return codes_BC, InputLayout([1, 0], columns, groups).to_tensor()


def _input_sizes(outputs: int) -> list[tuple[int, ...]]:
    """Return the sizes of weights, one-hot weights and embeddings."""
    return [(outputs, 48), (outputs, 6), (outputs,), (95, outputs), (9, 3), (9, 1)]


def _exact_input(x_BD: Tensor, codes_BC: Tensor, weights: Sequence[Tensor]) -> Tensor:
    spline_OK, base_OI, bias_O, one_hot_VO, *tables = weights
    codes_B, others_B = codes_BC.long().unbind(1)
    x_BI = torch.cat([x_BD[:, [1, 0]], tables[0][codes_B], tables[1][others_B]], dim=1)
    indices_BT = torch.stack([codes_B, 9 + others_B * (others_B < 5), 14 + 9 * codes_B + others_B], dim=1)
    first_BO = eager.radial_linear(x_BI, spline_OK, _grid(8).to(x_BI.dtype), 0.6) + F.linear(
        F.silu(x_BI), base_OI, bias_O
    )
    return first_BO + one_hot_VO[indices_BT].sum(1)


@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def step_is_right(networks: int, inputs: int, outputs: int, centers: int, *, bf16: bool = False) -> bool:
    """Return whether the loss of a whole step and its gradients are what the formula says."""
    case = _StepCase(networks, inputs, outputs, centers)
    found = [torch.zeros_like(each) for each in case.weights]
    value = case.fused(found, bf16=bf16)

    def exact(dtype: torch.dtype) -> list[Tensor]:
        weights = [each.to(dtype).requires_grad_() for each in case.weights]
        loss = case.exact(weights)
        return _of_step(loss, torch.autograd.grad(loss, weights))

    usual = PARTS_TOLERANCE if has_matrix_unit(require_library()) else TOLERANCE
    return _are_right("step", _of_step(value, found), exact, BF16_TOLERANCE if bf16 else usual)


def _of_step(value: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return what of a step is compared: the last two gradients together.

    That of the shift is the sum of those of the members' biases, which may nearly cancel: their norm counts.
    """
    return [value, *gradients[:-2], torch.cat([gradient.flatten() for gradient in gradients[-2:]])]


class _StepCase:
    """Random rows and weights of a whole step, and its loss in two ways."""

    def __init__(self, networks: int, inputs: int, outputs: int, centers: int) -> None:
        generator = torch.Generator().manual_seed(2)
        self.shape, self.grid_G, self.width = (networks, inputs), _grid(centers), 4 / (centers - 1)
        self.codes_BC, self.layout = _codes_and_layout()
        of_hidden = ((networks, *size) for size in _hidden_sizes(inputs, outputs, centers))
        sizes = [*_input_sizes(networks * inputs), *of_hidden, (outputs,)]
        self.weights = [torch.randn(*size, generator=generator) for size in sizes]
        self.x_BD = torch.randn(CHECK_ROWS, 2, generator=generator)
        self.is_measured_BL = torch.rand(CHECK_ROWS, outputs, generator=generator) < 0.7
        self.is_positive_BL = torch.rand(CHECK_ROWS, outputs, generator=generator) < 0.5
        self.total = self.is_measured_BL.sum().float()
        self.keys = [
            torch.randint(-(1 << 31), 1 << 31, (size,), generator=generator).int()
            for size in (CHECK_ROWS, networks * inputs)
        ]

    def fused(self, found: Sequence[Tensor], *, bf16: bool) -> Tensor:
        """Return the loss; its gradients are added to what is given."""
        labels_BL = self.is_positive_BL.byte().masked_fill(~self.is_measured_BL, 255)
        *weights, shift_L = self.weights
        of_input = (self.x_BD, torch.zeros(256), self.codes_BC, *weights[:4], weights[4:6], _grid(8), 0.6, self.layout)
        of_hidden = (*weights[6:], self.grid_G, self.width, *self.keys, DROPPED)
        loss = Loss(labels_BL, None, None, shift_L, 2.0, self.total)
        gradients = Gradients(found[0], found[1], found[2], found[3], found[4:6], found[6:11], found[11])
        first_BH = torch.empty(CHECK_ROWS, self.shape[0] * self.shape[1])
        return training_step(of_input, of_hidden, loss, gradients, first_BH, shifted=False, bf16=bf16)

    def exact(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the loss by the formula, in the type of the weights."""
        first_BH = _exact_input(self.x_BD.to(weights[0].dtype), self.codes_BC, weights[:6])
        first_NBI = first_BH.unflatten(1, self.shape).transpose(0, 1)
        row_key_B, unit_key_U = self.keys
        logits_NBL = _exact_hidden(first_NBI, weights[6:11], self.grid_G, self.width, row_key_B, unit_key_U)
        loss_NBL = F.binary_cross_entropy_with_logits(
            logits_NBL + weights[11],
            self.is_positive_BL.to(logits_NBL.dtype).expand_as(logits_NBL),
            reduction="none",
            pos_weight=torch.tensor(2.0),
        )
        return (loss_NBL.mean(0) * self.is_measured_BL).sum() / self.total


def _grid(centers: int) -> Tensor:
    return torch.linspace(-2, 2, centers)


def _is_right(
    name: str,
    fused: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    sizes: list[tuple[int, ...]],
    *,
    networks: int | None = None,
) -> bool:
    """Compare value and gradients of a pass on random numbers with a formula in float64."""
    generator = torch.Generator().manual_seed(0)
    front = () if networks is None else (networks,)
    numbers = [torch.randn(*front, *size, generator=generator) for size in sizes]
    direction: Tensor | None = None

    def results(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        nonlocal direction
        leaves = [each.to(dtype, copy=True).requires_grad_() for each in numbers]
        value = function(*leaves)
        direction = torch.randn(value.shape, generator=generator) if direction is None else direction
        # Of a scalar: with a gradient to begin with, torch imports for seconds what nothing here needs.
        return [value, *torch.autograd.grad((value * direction).sum(), leaves)]

    return _are_right(name, results(fused, torch.float32), lambda dtype: results(exact, dtype))


def _are_right(
    name: str, found: Sequence[Tensor], exact: Callable[[torch.dtype], Sequence[Tensor]], tolerance: float = TOLERANCE
) -> bool:
    """Compare results with those of a formula in float64, and where they differ with its own in float32."""
    expected = exact(torch.float64)
    errors = [relative_error(*pair) for pair in zip(found, expected, strict=True)]
    # One by one: the largest of numbers with a NaN among them may be any.
    if all(error <= tolerance for error in errors):
        return True
    rounded = [relative_error(*pair) for pair in zip(exact(torch.float32), expected, strict=True)]
    if all(error <= max(tolerance, ROUNDING * other) for error, other in zip(errors, rounded, strict=True)):
        return True
    differences = ", ".join(f"{error:.1e}" for error in errors)
    logger.warning("the native %s differs by %s on this processor; using the slower one", name, differences)
    return False
