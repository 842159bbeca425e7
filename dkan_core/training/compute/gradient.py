"""The gradient of a batch by autograd, added up over its parts."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.kernels.native_input import gradients_in_place
from dkan_core.training.compute.loss import Logits, part_loss, total_weight
from dkan_core.utils.arrays import Array

Rows = TypeVar("Rows", Tensor, Array)


def accumulate_gradient(
    model: TabularModel, batch: dict[str, Tensor], config: ResolvedTrainConfig
) -> tuple[float, float]:
    """Add the gradient of a batch's mean loss to the parameters' ``grad``; return that loss and its weight."""
    if len(batch["labels"]) == 0:
        return 0.0, 0.0
    loss, weight = add_gradient(model, batch, config)
    return loss.item(), weight.item()


def add_gradient(model: TabularModel, batch: dict[str, Tensor], config: ResolvedTrainConfig) -> tuple[Tensor, Tensor]:
    """Add the gradient of a batch's mean loss to the parameters' ``grad``; return that loss and its weight, scalars.

    The rows, at least one, are computed in parts, whose gradients add up. The host waits for nothing here.
    """
    return add_in_parts(batch, config, lambda part, total: add_part_gradient(model.member_logits, part, config, total))


def add_in_parts(
    batch: dict[str, Tensor], config: ResolvedTrainConfig, add_part: Callable[[dict[str, Tensor], Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Add the gradients of a batch's parts; return the batch's mean loss and its weight, scalars.

    Args:
        batch: The rows, at least one.
        config: Says how many parts.
        add_part: Given a part and the batch's weight, adds a gradient and returns what the part adds to the loss.
    """
    # The weight of the whole slice: the losses of its parts then add up to its mean.
    weight = total_weight(batch, config)
    losses = [add_part(part, weight) for part in parts_of(batch, config)]
    return torch.stack(losses).sum(), weight


def parts_of(batch: Mapping[str, Rows], config: ResolvedTrainConfig) -> list[dict[str, Rows]]:
    """Return a batch in ``config.accumulate`` parts: fewer where there are too few rows, one where there are none."""
    rows = len(batch["labels"])
    size = max(1, -(-rows // config.accumulate))
    starts = range(0, max(1, rows), size)
    return [{name: array[start : start + size] for name, array in batch.items()} for start in starts]


def add_part_gradient(
    member_logits: Logits, part: dict[str, Tensor], config: ResolvedTrainConfig, total: Tensor
) -> Tensor:
    """Add the gradient of some rows of a batch by a backward pass; return what they add to its mean loss."""
    loss = part_loss(member_logits, part, config, total)
    with gradients_in_place():
        torch.autograd.backward(loss)
    return loss.detach()
