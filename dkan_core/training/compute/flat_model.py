"""A model whose parameters and gradients are views of flat buffers.

Shape suffixes: P trainable parameters of the model.
"""

import numpy as np
import torch
from torch import Tensor, nn

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.config.train import Kernel
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.model.kernels import use_kernel
from dkan_core.model.sketch import one_step, sketched_layers
from dkan_core.model.training_step import PreparedStep, prepare_step
from dkan_core.training.compute.gradient import accumulate_gradient, parts_of
from dkan_core.training.compute.loss import total_weight_on_host
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.utils.arrays import Arrays, Float32

KEPT_BUFFERS = 4
"""Buffers whose views are made once: the two copies of a run's parameters take turns."""


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in a fixed order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """Return P, the number of trainable parameters."""
    return sum(parameter.numel() for parameter in trained_parameters(model))


def flatten(model: nn.Module) -> Tensor:
    """Return a copy of the trained parameters as one vector ``(P,)``."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained_parameters(model)])


class Replica:
    """The copy of the model in one process.

    On the CPU, its buffers are the arrays that it is given, maybe in shared memory, and nothing is copied; on CUDA, it
    has its own buffers.

    Args:
        model: The model; its parameters are replaced by views.
        device: Where it computes.
        kernel: What computes its layers.
    """

    def __init__(self, model: TabularModel, device: torch.device, kernel: Kernel = "auto") -> None:
        self.device = device
        use_kernel(model, kernel)
        self.model = model.to(device)
        # On a GPU, where a step may be a CUDA graph, autograd propagates gradients to the factors.
        self._sketched = sketched_layers(self.model) if device.type == "cpu" else []
        self._parameters = trained_parameters(self.model)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._views: dict[int, list[Tensor]] = {}
        self._steps: dict[tuple[object, ...], PreparedStep | None] = {}
        self.bind_values(torch.empty(sum(self._sizes), device=device))
        self.bind_gradients(torch.zeros(sum(self._sizes), device=device))

    @classmethod
    def from_architecture(
        cls, architecture: dict[str, object], device: torch.device, kernel: Kernel = "auto"
    ) -> "Replica":
        """Return a replica of a model whose parameters are loaded later."""
        return cls(build_model(ModelConfig.from_dict(architecture)), device, kernel)

    def load(self, values_P: Float32) -> None:
        """Take parameters ``(P,)``: on the CPU the model lives in the array from now on."""
        source = torch.from_numpy(values_P)
        if self.device.type == "cpu":
            self.bind_values(source)
        else:
            # Where the array is pinned, the host gets the rows meanwhile; else the copy has begun when this returns.
            self.values_P.copy_(source, non_blocking=True)

    def bind_gradient_array(self, gradients_P: Float32) -> None:
        """Write later gradients into an array ``(P,)``: on the CPU directly, on CUDA by ``copy_buffer``."""
        if self.device.type == "cpu":
            self.bind_gradients(torch.from_numpy(gradients_P))

    def bind_values(self, buffer_P: Tensor) -> None:
        """Move the parameters into a buffer on the same device."""
        self.values_P = buffer_P
        for parameter, value in zip(self._parameters, self._values(), strict=True):
            parameter.data = value

    def bind_gradients(self, buffer_P: Tensor) -> None:
        """Write later gradients into a buffer on the same device."""
        self.gradients_P = buffer_P
        for parameter, gradient in zip(self._parameters, self._split(buffer_P), strict=True):
            parameter.grad = gradient

    def copy_buffer(self, buffer_P: Tensor, array_P: Float32) -> None:
        """Copy one of the buffers into an array ``(P,)``, unless it is that array."""
        target = torch.from_numpy(array_P)
        # On the CPU it usually is: gradients are computed in place.
        if target.data_ptr() != buffer_P.data_ptr():
            target.copy_(buffer_P)

    def compute_gradient(self, arrays: Arrays, config: ResolvedTrainConfig, *, is_cleared: bool = False) -> LossTotals:
        """Put the gradient of a slice of a step into the gradients; return its mean loss, the weight of that, and rows.

        It is a function of parameters and rows alone, whichever process computes it.
        """
        if not is_cleared:
            self.gradients_P.zero_()
        rows, parts = len(arrays["labels"]), parts_of(arrays, config)
        with one_step(self._sketched):
            step = self._prepared_step(parts[0], config) if rows else None
            if step is None:
                loss, weight = accumulate_gradient(self.model, to_tensors(arrays, self.device), config)
                return LossTotals(loss, weight, rows)
            weight = total_weight_on_host(arrays, config)
            loss = sum(step.add_gradient(part, weight) for part in parts)
            # Rounded as autograd's is.
            return LossTotals(float(np.float32(loss)), weight, rows)

    def _prepared_step(self, arrays: Arrays, config: ResolvedTrainConfig) -> PreparedStep | None:
        """Return the prepared step for the current buffers; None if no single call computes such a batch."""
        if self.device.type != "cpu":
            return None
        buffers = (self.values_P.data_ptr(), self.gradients_P.data_ptr())
        of_rows = tuple(
            (name, array.dtype, array.flags.c_contiguous, *array.shape[1:]) for name, array in arrays.items()
        )
        key = (*buffers, *of_rows, self.model.training, config)
        if key not in self._steps:
            if len(self._steps) == KEPT_BUFFERS:
                self._steps.clear()
            self._steps[key] = prepare_step(self.model, arrays, config)
        return self._steps[key]

    def _values(self) -> list[Tensor]:
        """Return the views of the values; on the CPU, where buffers take turns, those made before."""
        if self.device.type != "cpu":
            return self._split(self.values_P)
        # The views keep the buffer alive, so no other buffer can have its address.
        address = self.values_P.data_ptr()
        if address not in self._views:
            if len(self._views) == KEPT_BUFFERS:
                self._views.clear()
            self._views[address] = self._split(self.values_P)
        return self._views[address]

    def _split(self, buffer_P: Tensor) -> list[Tensor]:
        parts = torch.split(buffer_P, self._sizes)
        return [part.view(each.shape) for part, each in zip(parts, self._parameters, strict=True)]
