"""A step's forward and backward pass in one call of the native extension, for the models that it knows.

Shape suffixes: B rows, F binary features, H the first layer's outputs over all members.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dkan_core.config import TrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.dropout import RowDropout
from dkan_core.model.encoder import stored_scores
from dkan_core.model.ensemble import FastKANEnsemble, MemberLayer
from dkan_core.model.fastkan import FastKANLayer, RadialBasis
from dkan_core.model.kernels import can_compute_step
from dkan_core.model.kernels.native_input import kept_gradients
from dkan_core.model.kernels.native_step import Gradients, Loss, training_step
from dkan_core.model.tabular import TabularFastKAN


class _Hidden(NamedTuple):
    """A hidden layer, which is the last one."""

    parameters: Sequence[Tensor]
    """As ``native_hidden.hidden_layer`` takes them, but for the first dimension where there is one network alone."""

    basis: RadialBasis
    dropout: RowDropout


def add_step_gradient(
    model: TabularModel, rows: Mapping[str, Tensor], config: TrainConfig, total: Tensor
) -> Tensor | None:
    """Add the gradient of the loss of prepared rows to the parameters' ``grad``; return that loss, a scalar.

    Args:
        model: The model.
        rows: Labels, maybe weights, features, and keys for dropout.
        config: Settings of the loss, and the precision.
        total: Sum of the weights of the batch that the rows are a part of; a scalar.

    Returns:
        None, with nothing changed, if autograd has to compute it, as on a GPU or with several hidden layers.

    Raises:
        IndexError: A code has no row in a table.
    """
    if not isinstance(model, TabularFastKAN):
        return None
    found = find_layers(model, config)
    if found is None:
        return None
    with torch.no_grad():
        return _step(model, found, rows, config, total)


class Layers(NamedTuple):
    """What a step goes through."""

    first: FastKANLayer
    hidden: _Hidden
    gradients: Gradients
    binary_gradient: Tensor | None
    """Of the weights of binary features."""


def find_layers(model: TabularFastKAN, config: TrainConfig) -> Layers | None:
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
    grad_spline, grad_base, grad_bias, grad_one_hot, grad_binary, grad_shift, *others = gradients
    split = len(hidden.parameters)
    to = Gradients(grad_spline, grad_base, grad_bias, grad_one_hot, others[split:], others[:split], grad_shift)
    return Layers(first, hidden, to, grad_binary)


def _only_hidden(model: TabularFastKAN) -> _Hidden | None:
    """Return the hidden layer of a model that has one."""
    layers, dropouts = [*model.network.layers], [*model.network.dropouts]
    if len(layers) != 2:
        return None
    layer, dropout = layers[1], dropouts[0]
    assert isinstance(layer, FastKANLayer | MemberLayer) and isinstance(dropout, RowDropout)
    parameters = layer.weights()
    return None if parameters is None else _Hidden(parameters, layer.rbf, dropout)


def _step(
    model: TabularFastKAN, layers: Layers, rows: Mapping[str, Tensor], config: TrainConfig, total: Tensor
) -> Tensor:
    encoder = model.encoder
    binary_BF = encoder.binary_inputs(rows.get("numeric"), rows.get("dropout_key"))
    if binary_BF is None or encoder.binary_linear is None:
        first_BH = model.bias.new_empty(len(rows["labels"]), model.first_width)
    else:
        first_BH = encoder.binary_linear(binary_BF)
    arguments = (*step_arguments(model, layers, rows, config, total), layers.gradients, first_BH)
    value = training_step(*arguments, shifted=binary_BF is not None, bf16=config.precision == "bf16")
    if layers.binary_gradient is not None and binary_BF is not None:
        # `first_BH` holds the gradient of the first layer's outputs by now.
        layers.binary_gradient.addmm_(first_BH.T, binary_BF)
    return value


def step_arguments(
    model: TabularFastKAN, layers: Layers, rows: Mapping[str, Tensor], config: TrainConfig, total: Tensor
) -> tuple[Sequence[Any], Sequence[Any], Loss]:
    """Return the first arguments of ``native_step.training_step``: those of both layers, and the loss."""
    encoder, first, hidden = model.encoder, layers.first, layers.hidden
    arrays = (stored_scores(rows.get("numeric")), encoder.byte_scores, rows.get("categorical"))
    of_input = (*arrays, *encoder.input_weights(first), first.rbf.grid, first.rbf.width, encoder.layout)
    networks = [each if isinstance(model.network, FastKANEnsemble) else each.unsqueeze(0) for each in hidden.parameters]
    dropout = hidden.dropout.hashed(rows.get("dropout_key"))
    of_hidden = (*networks, hidden.basis.grid, hidden.basis.width, *dropout)
    label_weight_L = torch.tensor(config.label_weights, dtype=torch.float32) if config.label_weights else None
    loss = Loss(rows["labels"], rows.get("weight"), label_weight_L, model.bias, config.pos_weight, total)
    return of_input, of_hidden, loss
