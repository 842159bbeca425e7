"""A worker's part of one step: the model on flat buffers, the loss, and its gradient.

Shape suffixes: B rows, L labels, P trained numbers of the model.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.data.hashing import salted
from dkan_core.data.shards import Arrays
from dkan_core.errors import TrainingError
from dkan_core.metrics import NOT_MEASURED
from dkan_core.model.tabular import ModelConfig, TabularFastKAN


def initial_model(config: ModelConfig, seed: int) -> TabularFastKAN:
    """Return the model that a run starts from, on the CPU; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TabularFastKAN(config)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in a fixed order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """Return P, the number of trained numbers."""
    return sum(parameter.numel() for parameter in trained_parameters(model))


def decayed_ranges(model: nn.Module) -> list[tuple[int, int]]:
    """Return the stretches of the flat parameters that decay: matrices do, vectors such as biases and norms do not."""
    ranges, start = [], 0
    for parameter in trained_parameters(model):
        stop = start + parameter.numel()
        if parameter.ndim > 1:
            ranges.append((start, stop))
        start = stop
    return ranges


def bind(model: nn.Module, values_P: Tensor, gradients_P: Tensor | None = None) -> None:
    """Make the model's parameters, and their gradients where given, views of flat buffers, without a copy.

    Shape:
        - values_P, gradients_P: ``(P,)``, on the device that the model is to run on
    """
    start = 0
    for parameter in trained_parameters(model):
        stop = start + parameter.numel()
        parameter.data = values_P[start:stop].view(parameter.shape)
        if gradients_P is not None:
            parameter.grad = gradients_P[start:stop].view(parameter.shape)
        start = stop
    assert start == len(values_P), f"the buffer holds {len(values_P)} numbers, the model {start}"


def flatten(model: nn.Module) -> Tensor:
    """Return a copy of the trained parameters as one vector ``(P,)``."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained_parameters(model)])


def to_tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """Move a batch to a device; through pinned memory and without waiting when that is CUDA."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type != "cuda":
        return tensors
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}


def masked_loss(logits_BL: Tensor, labels_BL: Tensor, weight_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weighted mean binary cross-entropy over the measured labels, and the sum of their weights.

    Shape:
        - Input: ``(B, L)``, ``(B, L)`` uint8, ``(B,)``
        - Output: two scalars
    """
    weight_BL = (labels_BL != NOT_MEASURED).to(logits_BL.dtype)
    if weight_B is not None:
        weight_BL = weight_BL * weight_B.unsqueeze(1)
    loss_BL = F.binary_cross_entropy_with_logits(logits_BL, labels_BL.to(logits_BL.dtype), reduction="none")
    total = weight_BL.sum()
    return (loss_BL * weight_BL).sum() / total.clamp(min=torch.finfo(total.dtype).tiny), total


def compute_gradient(model: TabularFastKAN, batch: dict[str, Tensor]) -> tuple[float, float]:
    """Put the gradient of a batch's mean loss into the parameters' ``grad``; return that loss and its weight."""
    for parameter in trained_parameters(model):
        if parameter.grad is not None:
            parameter.grad.zero_()
    if len(batch["labels"]) == 0:
        return 0.0, 0.0
    logits_BL = model(batch.get("numeric"), batch.get("categorical"))
    loss, weight = masked_loss(logits_BL, batch["labels"], batch.get("weight"))
    torch.autograd.backward(loss)
    return loss.item(), weight.item()


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed what is random inside a step (dropout), so that a step is a function of seed, step and rank alone."""
    torch.manual_seed(salted(seed, f"{step}/{rank}"))


def worker_step(
    model: TabularFastKAN, arrays: Arrays, device: torch.device, *, seed: int, step: int, rank: int
) -> tuple[float, float]:
    """Put the gradient of a worker's part of a step into the parameters' ``grad``; return mean loss and weight.

    Raises:
        TrainingError: The loss is no number any more.
    """
    seed_step(seed, step, rank)
    loss, weight = compute_gradient(model, to_tensors(arrays, device))
    if not math.isfinite(loss):
        raise TrainingError(f"loss became {loss} at step {step}; lower learning_rate or check the weights")
    return loss, weight
