"""The loss that training minimizes: weighted binary cross-entropy over measured labels.

Shape suffixes: M members, B rows, L labels.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.utils.arrays import Arrays

Logits = Callable[[Tensor | None, Tensor | None, Tensor, Tensor | None], Tensor]
"""From numeric and categorical columns, the rows' keys for dropout, and sparse columns to the logits ``(M, B, L)``."""


def cell_weights(labels_BL: Tensor, weight_B: Tensor | None, label_weights: Sequence[float]) -> Tensor:
    """Return what each label of each row counts in the loss: 0 where it is not measured.

    Shape:
        - Input: ``(B, L)`` uint8, ``(B,)``; ``label_weights`` L numbers or none
        - Output: ``(B, L)`` float32
    """
    weight_BL = (labels_BL != NOT_MEASURED).float()
    if weight_B is not None:
        weight_BL = weight_BL * weight_B.unsqueeze(1)
    return weight_BL * constants(tuple(label_weights), weight_BL.device) if label_weights else weight_BL


def total_weight(arrays: Arrays, config: ResolvedTrainConfig) -> float:
    """Return the sum of what all labels of some rows count in the loss."""
    if "weight" not in arrays and not config.label_weights:
        return float(np.count_nonzero(arrays["labels"] != NOT_MEASURED))
    rows = to_tensors(arrays, torch.device("cpu"))
    return cell_weights(rows["labels"], rows.get("weight"), config.label_weights).sum().item()


@functools.cache
def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers on a device as a tensor that stays: a step that is a CUDA graph cannot copy from the host."""
    # Whole numbers may be integers.
    return torch.tensor(values, dtype=torch.float32, device=device)


def masked_loss(
    logits_MBL: Tensor,
    labels_BL: Tensor,
    weight_B: Tensor | None,
    *,
    pos_weight: float = 1.0,
    label_weights: Sequence[float] = (),
    total: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean binary cross-entropy over members and measured labels, and the sum of their weights.

    Where the rows are a part of some batch, ``total`` is that batch's sum of weights: the losses of its parts then add
    up to the mean of the whole.

    Shape:
        - Input: ``(M, B, L)``, ``(B, L)`` uint8, ``(B,)``; ``label_weights`` L numbers or none; ``total`` a scalar
        - Output: two scalars
    """
    weight_BL = cell_weights(labels_BL, weight_B, label_weights)
    loss_MBL = F.binary_cross_entropy_with_logits(
        logits_MBL,
        labels_BL.to(logits_MBL.dtype).expand_as(logits_MBL),
        reduction="none",
        pos_weight=None if pos_weight == 1 else logits_MBL.new_full((), pos_weight),
    )
    total = weight_BL.sum() if total is None else total
    # A batch may have no measured label; its loss is 0, not NaN.
    return (loss_MBL.mean(0) * weight_BL).sum() / total.clamp(min=torch.finfo(total.dtype).tiny), total


def part_loss(member_logits: Logits, part: dict[str, Tensor], config: ResolvedTrainConfig, total: Tensor) -> Tensor:
    """Return what some rows of a batch add to its mean loss, in float32; ``total`` is the batch's weight."""
    # The loss is computed outside, in float32: bfloat16 has three digits.
    with torch.autocast(total.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        arguments = part.get("numeric"), part.get("categorical"), part["dropout_key"], part.get("sparse")
        logits_MBL = member_logits(*arguments)
    loss, _ = masked_loss(
        logits_MBL.float(),
        part["labels"],
        part.get("weight"),
        pos_weight=config.pos_weight,
        label_weights=config.label_weights,
        total=total,
    )
    return loss
