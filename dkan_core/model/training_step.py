"""Steps of a model by the native extension: forward and backward pass in one call, for the models that it knows.

The arguments are built once for a pair of buffers, and only the rows change between batches. Collecting them for every
batch, through modules and torch's dispatcher, took as long as computing a small batch.

Shape suffixes: B rows, F binary features, H the first layer's outputs over all members.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dkan_core.config import TrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.decoding import decode_scores
from dkan_core.model.dropout import RowDropout
from dkan_core.model.encoder import stored_scores
from dkan_core.model.ensemble import FastKANEnsemble, MemberLayer
from dkan_core.model.fastkan import FastKANLayer, RadialBasis
from dkan_core.model.kernels import can_compute_step
from dkan_core.model.kernels.native_input import kept_gradients
from dkan_core.model.kernels.native_step import Gradients, Loss, StepCall, divisor_of
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.utils.arrays import Arrays

TYPES = {
    "numeric": (np.uint8, np.float16, np.float32),
    "categorical": (np.int32,),
    "labels": (np.uint8,),
    "weight": (np.float32,),
    "group": (np.uint8,),
    "dropout_key": (np.int32,),
}
"""Types of the arrays of rows that a call reads, or ignores."""


class _Hidden(NamedTuple):
    """A hidden layer, which is the last one."""

    parameters: Sequence[Tensor]
    """As ``native_hidden.hidden_layer`` takes them, but for the first dimension where there is one network alone."""

    basis: RadialBasis
    dropout: RowDropout


class _Layers(NamedTuple):
    """What a step goes through."""

    first: FastKANLayer
    hidden: _Hidden
    gradients: Gradients


class PreparedStep:
    """Adds the gradient of the loss of prepared rows to the gradients of a model's parameters.

    It uses the buffers of parameters and gradients that are bound when it is created.

    Args:
        model: The model, in training mode.
        layers: Its layers.
        arrays: Rows like those to come, of the same arrays and types.
        config: Settings of the loss, and the precision.
    """

    def __init__(self, model: TabularFastKAN, layers: _Layers, arrays: Arrays, config: TrainConfig) -> None:
        self._encoder = model.encoder
        self._first_BH = torch.empty(len(arrays["labels"]), model.first_width)
        rows = {name: torch.from_numpy(array) for name, array in arrays.items()}
        shifted, bf16 = model.encoder.binary_linear is not None, config.precision == "bf16"
        with torch.no_grad():
            first_arguments = _step_arguments(model, layers, rows, config)
            self._call = StepCall(*first_arguments, layers.gradients, self._first_BH, shifted=shifted, bf16=bf16)

    def add_gradient(self, arrays: Arrays, total: float) -> float:
        """Add the gradient of the loss of some rows; return that loss.

        Args:
            arrays: The rows, at least one.
            total: Sum of the weights of the batch that they are a part of.

        Raises:
            IndexError: A code has no row in a table.
        """
        step = self._call.arguments
        of_input, hidden, loss = step.input, step.hidden, step.loss
        of_input.rows = hidden.rows = rows = len(arrays["labels"])
        if rows > len(self._first_BH):
            self._first_BH = torch.empty(rows, self._first_BH.shape[1])
            self._call.point_to(self._first_BH)
        numeric = arrays.get("numeric")
        if numeric is not None and numeric.dtype == np.uint8:
            of_input.bytes = numeric.ctypes.data
        elif numeric is not None:
            scores_BF = decode_scores(torch.from_numpy(numeric))
            of_input.scores = scores_BF.data_ptr()
        if "categorical" in arrays:
            of_input.codes = arrays["categorical"].ctypes.data
        if hidden.row_keys is not None:
            hidden.row_keys = arrays["dropout_key"].ctypes.data
        if "weight" in arrays:
            loss.row_weights = arrays["weight"].ctypes.data
        loss.labels = arrays["labels"].ctypes.data
        loss.total = divisor_of(total)
        return self._call.run() if self._encoder.binary_linear is None else self._run_with_binary(arrays)

    @torch.no_grad()
    def _run_with_binary(self, arrays: Arrays) -> float:
        """Take the step; torch multiplies the weights of binary features."""
        linear = self._encoder.binary_linear
        numeric, keys = (torch.from_numpy(arrays[name]) for name in ("numeric", "dropout_key"))
        binary_BF = self._encoder.binary_inputs(numeric, keys)
        assert linear is not None and binary_BF is not None and linear.weight.grad is not None
        first_BH = torch.mm(binary_BF, linear.weight.T, out=self._first_BH[: len(numeric)])
        value = self._call.run()
        # ``first_BH`` holds the gradient of the first layer's outputs by now.
        linear.weight.grad.addmm_(first_BH.T, binary_BF)
        return value


def prepare_step(model: TabularModel, arrays: Arrays, config: TrainConfig) -> PreparedStep | None:
    """Return the steps of a model on its present buffers; None if autograd has to compute such rows or layers.

    Args:
        model: The model, in training mode.
        arrays: Rows like those to come, at least one.
        config: Settings of the loss, and the precision.
    """
    usual = all(array.dtype in TYPES.get(name, ()) and array.flags.c_contiguous for name, array in arrays.items())
    if not usual or not isinstance(model, TabularFastKAN):
        return None
    layers = _find_layers(model, config)
    return None if layers is None else PreparedStep(model, layers, arrays, config)


def _find_layers(model: TabularFastKAN, config: TrainConfig) -> _Layers | None:
    """Return the layers of a model whose steps one call computes; None for others."""
    first, hidden = model.first_layer, _only_hidden(model)
    if first is None or hidden is None or first.layernorm is not None or model.encoder.sparse is not None:
        return None
    members, outputs = model.config.members, len(model.bias)
    shape = (members, model.first_width // members, outputs, len(hidden.basis.grid))
    if not can_compute_step(first.spline_linear.weight, shape, first.kernel, bf16=config.precision == "bf16"):
        return None
    weights, binary = model.encoder.input_weights(first), model.encoder.binary_linear
    binary_weight = None if binary is None else binary.weight
    kept = kept_gradients([*weights[:4], binary_weight, model.bias, *hidden.parameters, *weights.embeddings])
    if kept is None:
        return None
    gradients: Sequence[Any] = kept
    grad_spline, grad_base, grad_bias, grad_one_hot, _, grad_shift, *others = gradients
    split = len(hidden.parameters)
    to = Gradients(grad_spline, grad_base, grad_bias, grad_one_hot, others[split:], others[:split], grad_shift)
    return _Layers(first, hidden, to)


def _only_hidden(model: TabularFastKAN) -> _Hidden | None:
    """Return the hidden layer of a model that has one."""
    layers, dropouts = [*model.network.layers], [*model.network.dropouts]
    if len(layers) != 2:
        return None
    layer, dropout = layers[1], dropouts[0]
    assert isinstance(layer, FastKANLayer | MemberLayer) and isinstance(dropout, RowDropout)
    parameters = layer.weights()
    return None if parameters is None else _Hidden(parameters, layer.rbf, dropout)


def _step_arguments(
    model: TabularFastKAN, layers: _Layers, rows: dict[str, Tensor], config: TrainConfig
) -> tuple[Sequence[Any], Sequence[Any], Loss]:
    """Return the first arguments of ``StepCall``: those of both layers, and the loss."""
    encoder, first, hidden = model.encoder, layers.first, layers.hidden
    arrays = (stored_scores(rows.get("numeric")), encoder.byte_scores, rows.get("categorical"))
    of_input = (*arrays, *encoder.input_weights(first), first.rbf.grid, first.rbf.width, encoder.layout)
    networks = [each if isinstance(model.network, FastKANEnsemble) else each.unsqueeze(0) for each in hidden.parameters]
    dropout = hidden.dropout.hashed(rows.get("dropout_key"))
    of_hidden = (*networks, hidden.basis.grid, hidden.basis.width, *dropout)
    label_weight_L = torch.tensor(config.label_weights, dtype=torch.float32) if config.label_weights else None
    loss = Loss(rows["labels"], rows.get("weight"), label_weight_L, model.bias, config.pos_weight, torch.ones(()))
    return of_input, of_hidden, loss
