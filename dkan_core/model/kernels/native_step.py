"""Forward and backward pass of a whole step by the native extension: a first layer, a hidden one, and the loss.

What the first layer looks up serves both its passes, and a row's hidden layer goes back as soon as its loss is known,
while all that it needs is in the nearest cache. Autograd's own work, dozens of small operations, is gone.

Shape suffixes: B rows, L labels, H the first layer's outputs over all networks, N networks.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dkan_core.model.kernels.native import register
from dkan_core.model.kernels.native_hidden import HIDDEN_ARGUMENTS, HiddenCall
from dkan_core.model.kernels.native_input import INPUT_ARGUMENTS, InputCall
from dkan_core.native.library import LossArguments, StepArguments, require_library


class Loss(NamedTuple):
    """Binary cross-entropy, its mean over networks, weighted over rows and labels."""

    labels_BL: Tensor
    """Uint8, 255 where not measured."""

    weight_B: Tensor | None
    """Of the rows."""

    label_weight_L: Tensor | None
    shift_L: Tensor
    """Added to the outputs of all networks."""

    pos_weight: float
    total: Tensor
    """Sum of the weights of a batch that the rows are a part of; a scalar."""


class Gradients(NamedTuple):
    """Where the gradients are added to."""

    spline_HK: Tensor
    base_HI: Tensor
    bias_H: Tensor
    one_hot_VH: Tensor | None
    embeddings: Sequence[Tensor]
    hidden: Sequence[Tensor]
    """Of the weights of the hidden layer, in their order."""

    shift_L: Tensor


def training_step(
    input_arguments: Sequence[Any],
    hidden_arguments: Sequence[Any],
    loss: Loss,
    gradients: Gradients,
    first_BH: Tensor,
    *,
    shifted: bool,
    bf16: bool = False,
) -> Tensor:
    """Return the loss of some rows, and add its gradients.

    Args:
        input_arguments: What ``native_input.input_layer`` is given, one by one.
        hidden_arguments: What ``native_hidden.hidden_layer`` is given after its inputs, one by one.
        loss: What it is.
        gradients: Where they go.
        first_BH: Takes the gradient of the first layer's outputs.
        shifted: Whether ``first_BH`` is to be added to the first layer's outputs; else it may hold anything.
        bf16: Whether matrix products may be those of bfloat16 numbers, where the processor has such an instruction.

    Raises:
        IndexError: A code has no row in a table.
    """
    arguments = (*input_arguments, *hidden_arguments, *loss, *gradients, first_BH, shifted, bf16)
    value: Tensor = operation(*arguments)
    return value


INPUTS, HIDDEN = 11, 10
"""How many arguments are those of either layer."""


class StepCall:
    """The arguments of a step, and the tensors that their pointers point into.

    The arguments are those of ``training_step``.
    """

    def __init__(
        self,
        input_arguments: Sequence[Any],
        hidden_arguments: Sequence[Any],
        loss: Loss,
        gradients: Gradients,
        first_BH: Tensor,
        *,
        shifted: bool,
        bf16: bool,
    ) -> None:
        networks = hidden_arguments[0].shape[0]
        x_NBI = first_BH.unflatten(1, (networks, -1)).transpose(0, 1)
        first, hidden = InputCall(*input_arguments), HiddenCall((x_NBI, *hidden_arguments[:6]), *hidden_arguments[6:])
        assert hidden.x_NBI.data_ptr() == first_BH.data_ptr(), "no copy"
        hidden.point_to_gradients(x_NBI, gradients.hidden)
        first.arguments.bf16_parts = 1 if bf16 else 2
        first.point_to_gradients(None, gradients[:4], gradients.embeddings)
        self._value = ctypes.c_double(0)
        of_loss = _loss_arguments(loss, gradients.shift_L, self._value)
        self._kept = (first, hidden, loss, gradients)
        self._shifted = shifted
        self.arguments = StepArguments(input=first.arguments, hidden=hidden.arguments, loss=of_loss)
        self.point_to(first_BH)

    def point_to(self, first_BH: Tensor) -> None:
        """Use another tensor as ``first_BH``, for as many rows or more."""
        self._first_BH, address = first_BH, first_BH.data_ptr()
        of_input, hidden = self.arguments.input, self.arguments.hidden
        of_input.out = of_input.grad_out = hidden.x = hidden.grad_x = address
        of_input.shift = address if self._shifted else None

    def run(self) -> float:
        """Take the step; return the loss.

        Raises:
            IndexError: A code has no row in a table.
        """
        wrong = require_library().dkan_training_step(ctypes.byref(self.arguments), torch.get_num_threads())
        if wrong >= 0:
            raise IndexError(f"row {wrong} has a code that is no row of its table")
        return self._value.value


def _training_step(*arguments: Any) -> Tensor:
    of_input, of_hidden = arguments[:INPUTS], arguments[INPUTS : INPUTS + HIDDEN]
    *of_loss, first_BH, shifted, bf16 = arguments[INPUTS + HIDDEN :]
    loss, gradients = Loss(*of_loss[:6]), Gradients(*of_loss[6:])
    call = StepCall(of_input, of_hidden, loss, gradients, first_BH, shifted=shifted, bf16=bf16)
    value: Tensor = first_BH.new_tensor(call.run())
    return value


def _loss_arguments(loss: Loss, grad_shift_L: Tensor, value: ctypes.c_double) -> LossArguments:
    tensors = (loss.labels_BL, loss.weight_B, loss.label_weight_L, loss.shift_L)
    assert all(each is None or each.is_contiguous() for each in tensors), "parts of rows"
    return LossArguments(
        *(None if each is None else each.data_ptr() for each in tensors),
        grad_shift=grad_shift_L.data_ptr(),
        out=ctypes.addressof(value),
        total=divisor_of(loss.total.item()),
        pos_weight=loss.pos_weight,
    )


def divisor_of(total: float) -> float:
    """Return what the loss is divided by: a batch may have no measured label, whose loss is 0, not NaN."""
    return max(total, torch.finfo(torch.float32).tiny)


register(
    f"training_step({INPUT_ARGUMENTS}, {HIDDEN_ARGUMENTS.replace('centers', 'hidden_centers')}, "
    "Tensor labels, Tensor? weight, Tensor? label_weights, Tensor shift, float pos_weight, Tensor total, "
    "Tensor(a!) grad_spline, Tensor(b!) grad_base, Tensor(c!) grad_bias, Tensor(d!)? grad_one_hot, "
    "Tensor(e!)[] grad_embeddings, Tensor(f!)[] grad_hidden, Tensor(g!) grad_shift, Tensor(h!) first, bool shifted, "
    "bool bf16)"
    " -> Tensor",
    _training_step,
    lambda *arguments: arguments[-3].new_empty(()),
)

operation = torch.ops.dkan.training_step.default
