"""Tensor parallelism (Megatron-LM: Shoeybi et al. 2019, arXiv:1909.08053): ranks divide the units of hidden layers.

The ranks are a mesh of two dimensions: along "tensor" they have different units of one copy of the model and take the
same rows, along "data" they have different rows. ``tensor-parallel`` has one copy, ``hybrid`` several.

Each divided layer reads all inputs and computes the rank's own outputs ("column-parallel"), which DTensor then gathers,
with the matching backward pass. The last layer is not divided, as there are few labels.

Shape suffixes: M members, B rows, L labels, H outputs of the first layer over all members.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dkan_core.model.base import TabularModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.collectives.model_parallel import ModelParallelism, divided
from dkan_core.training.compute.gradient import add_in_parts, add_part_gradient
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.utils.arrays import Arrays

UNIT_DIMS = {
    "spline_linear.weight": -2,
    "base_linear.weight": -2,
    "base_linear.bias": -1,
    "spline_weight": -2,
    "base_weight": -2,
    "base_bias": -1,
    "binary_linear.weight": -2,
    "indicators.weight": -1,
}
"""The dimension of a layer's outputs, by the end of a parameter's name; others have none and are needed whole."""


class TensorParallelism(ModelParallelism):
    """Ranks have different units of each hidden layer, with all that leads to them."""

    def take_part(self, model: TabularModel) -> TabularModel:
        """Keep this rank's units of the encoder's tables and of all layers but the last."""
        # It takes a second and a half to import.
        from torch.distributed.device_mesh import init_device_mesh

        assert isinstance(model, TabularFastKAN), "other models are refused"
        shape = (self.process_group.size // self.per_copy, self.per_copy)
        self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("data", "tensor"))["tensor"]
        self._one = torch.ones((), device=self.device)
        layers = [*model.network.layers]
        for layer in (model.encoder, *layers[:-1]):
            if layer is not None:
                self._take_units(layer)
        # The first layer's outputs are gathered after what the encoder adds to them.
        for layer in layers[1:-1]:
            layer.register_forward_pre_hook(self._sum_gradients_of_inputs)
            layer.register_forward_hook(lambda _, inputs, units: self._gathered(units))
        last = next(name for name, module in model.named_modules() if module is layers[-1])
        self.repeated = (f"{last}.", "bias")
        return model

    def add_gradient(self, arrays: Arrays) -> LossTotals:
        """Compute the logits with the other ranks, and the gradient of this one's units."""
        rows = len(arrays["labels"])
        if not rows:
            return LossTotals(0.0, 0.0, 0)
        batch = to_tensors(arrays, self.part.device)
        loss, weight = add_in_parts(
            batch, self.config, lambda part, _: add_part_gradient(self._member_logits, part, self.config, self._one)
        )
        if self.part_index or not weight:
            return LossTotals(0.0, 0.0, 0 if self.part_index else rows)
        return LossTotals(loss.item() / weight.item(), weight.item(), rows)

    def _member_logits(
        self, *, numeric: Tensor | None = None, categorical: Tensor | None = None, dropout_key_B: Tensor
    ) -> Tensor:
        model = self.part.model
        assert isinstance(model, TabularFastKAN)
        first_BH = self._gathered(model.first_output(numeric, categorical, dropout_key_B))
        return model.logits_of(first_BH, dropout_key_B)

    @torch.no_grad()
    def _take_units(self, layer: nn.Module) -> None:
        for name, parameter in layer.named_parameters():
            dim = next((dim for end, dim in UNIT_DIMS.items() if name.endswith(end)), None)
            if dim is not None:
                shape = list(parameter.shape)
                shape[dim] //= self.per_copy
                parameter.data = divided(parameter, torch.Size(shape), self.part_index).clone()

    def _gathered(self, units: Tensor) -> Tensor:
        """Return all ranks' units, given this one's in the last dimension."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placed = DTensor.from_local(units, self._mesh, [Shard(units.dim() - 1)], run_check=False)
        # After this layer all ranks compute the same, and so have the same gradient.
        return placed.full_tensor(grad_placements=[Replicate()])

    def _sum_gradients_of_inputs(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sum the gradients of the inputs over the units of all ranks."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        x, *others = inputs
        placed = DTensor.from_local(x, self._mesh, [Replicate()], run_check=False)
        return (placed.to_local(grad_placements=[Partial()]), *others)
