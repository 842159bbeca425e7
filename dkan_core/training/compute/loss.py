"""The loss that training minimizes: weighted binary cross-entropy over measured labels.

Shape suffixes: M members, B rows, L labels.
"""

import functools
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.config import TrainConfig
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.model.base import INPUTS
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.utils.arrays import Arrays

Logits = Callable[..., Tensor]
"""Returns the logits ``(M, B, L)``, given what ``TabularModel.member_logits`` is given, by name."""


def cell_weights(rows: Mapping[str, Tensor], config: TrainConfig) -> Tensor:
    """Return the weight in the loss of each label of each row, 0 if it is not measured.

    Shape:
        - Input: labels ``(B, L)`` uint8, and maybe the rows' weight ``(B,)``
        - Output: ``(B, L)`` float32
    """
    weight_BL = (rows["labels"] != NOT_MEASURED).float()
    if "weight" in rows:
        weight_BL = weight_BL * rows["weight"].unsqueeze(1)
    return weight_BL * constants(config.label_weights, weight_BL.device) if config.label_weights else weight_BL


def total_weight(rows: Mapping[str, Tensor], config: TrainConfig) -> Tensor:
    """Return the sum of ``cell_weights``, a scalar: the loss of a batch is the mean over it."""
    return cell_weights(rows, config).sum()


def total_weight_on_host(arrays: Arrays, config: TrainConfig) -> float:
    """Return the same for rows on the host, in less time where all labels have equal weights."""
    if "weight" not in arrays and not config.label_weights:
        return float(np.count_nonzero(arrays["labels"] != NOT_MEASURED))
    return total_weight(to_tensors(arrays, torch.device("cpu")), config).item()


@functools.cache
def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers on a device as a tensor that stays: a step that is a CUDA graph cannot copy from the host."""
    # The values may be Python integers.
    return torch.tensor(values, dtype=torch.float32, device=device)


def masked_loss(logits_MBL: Tensor, rows: Mapping[str, Tensor], config: TrainConfig, total: Tensor) -> Tensor:
    """Return the contribution of some rows to the weighted mean binary cross-entropy of their batch, a scalar.

    It is the mean over members, and over the measured labels of the whole batch, whose ``total_weight`` is ``total``:
    the losses of a batch's parts add up to its loss.

    Shape:
        - Input: ``(M, B, L)``; labels ``(B, L)`` uint8, and maybe the rows' weight ``(B,)``; ``total`` a scalar
    """
    loss_MBL = F.binary_cross_entropy_with_logits(
        logits_MBL,
        rows["labels"].to(logits_MBL.dtype).expand_as(logits_MBL),
        reduction="none",
        pos_weight=None if config.pos_weight == 1 else logits_MBL.new_full((), config.pos_weight),
    )
    # A batch may have no measured label; its loss is 0, not NaN.
    return (loss_MBL.mean(0) * cell_weights(rows, config)).sum() / total.clamp(min=torch.finfo(total.dtype).tiny)


def part_loss(member_logits: Logits, part: dict[str, Tensor], config: TrainConfig, total: Tensor) -> Tensor:
    """Return what some rows of a batch add to its mean loss, in float32; ``total`` is the batch's weight."""
    # The loss is computed outside of autocast, in float32: bfloat16 has three digits.
    with torch.autocast(total.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        inputs = {name: part[name] for name in INPUTS if name in part}
        logits_MBL = member_logits(dropout_key_B=part["dropout_key"], **inputs)
    return masked_loss(logits_MBL.float(), part, config, total)
