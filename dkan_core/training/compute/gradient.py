"""A worker's part of one step: the model on flat buffers, the loss, and its gradient.

Shape suffixes: M members, B rows, L labels, P trainable parameters of the model.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.model.kernels.native_input import gradients_in_place
from dkan_core.model.parameter_count import check_fits_memory, check_sketch
from dkan_core.model.random_state import random_state
from dkan_core.model.training_step import LossTerms, add_step_gradient
from dkan_core.training.state.adamw import Decayed
from dkan_core.utils.arrays import Arrays

Logits = Callable[[Tensor | None, Tensor | None, Tensor, Tensor | None], Tensor]
"""From numeric and categorical columns, the rows' keys for dropout, and sparse columns to the logits ``(M, B, L)``."""

# Weights that stand for single codes fit noise where a code has few rows. At so many rows per code they decay as all
# others do; the factor is the root of the ratio, and lies within the two bounds (docs/concepts/model.md).
EVEN_CODE_ROWS = 540
MIN_CODE_DECAY = 0.1
MAX_CODE_DECAY = 3.0

# AdamW's steps are as large for a code that few rows have, whose gradient is mostly noise, as for any weight. So
# embeddings learn the slower, the fewer rows a code has on average; at EVEN_CODE_ROWS they learn as all weights do.
MIN_CODE_RATE = 0.1
# Times the decay of the others: at their rate a curve stays too flat.
ADDITIVE_DECAY = 0.2


def untrained_model(architecture: ModelConfig, prepared: PreparedData, config: ResolvedTrainConfig) -> TabularModel:
    """Return the model that training starts from: a function of the seed, at the labels' prior log-odds by rows.

    Raises:
        ConfigError: It is more than memory holds, or its first layer is sketched and not smaller for it.
    """
    check_sketch(architecture)
    check_fits_memory(architecture)
    with random_state(config.seed):
        model = build_model(architecture)
    classes = [prepared.splits["train"].classes[label] for label in prepared.labels]
    # Half a row more of each class: a label may have one class alone.
    positives = [config.pos_weight * counts["1"] for counts in classes]
    model.start_at([math.log((p + 0.5) / (counts["0"] + 0.5)) for p, counts in zip(positives, classes, strict=True)])
    return model


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in a fixed order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """Return P, the number of trainable parameters."""
    return sum(parameter.numel() for parameter in trained_parameters(model))


def decayed_ranges(model: TabularModel, config: ResolvedTrainConfig, rows: int) -> list[Decayed]:
    """Return the ranges of the flat parameters that decay, and how much.

    Matrices do; vectors such as biases and norms do not. What stands for single codes (embeddings and one-hots)
    decays by the rows that a code has on average: the fewer, the more.
    """
    sizes = model.code_tables
    base = config.weight_decay * (ADDITIVE_DECAY if config.model == "additive" else 1.0)
    ranges: list[Decayed] = []
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name in sizes:
            width = parameter.shape[1]
            ends = itertools.accumulate((size * width for size in sizes[name]), initial=start)
            taken = model.codes_per_row.get(name, [1.0] * len(sizes[name]))
            rows_per_code = [rows * ones / size for ones, size in zip(taken, sizes[name], strict=True)]
            decays = [code_decay(base, max(1.0, each)) for each in rows_per_code]
            ranges += [
                (start, stop, decay) for (start, stop), decay in zip(itertools.pairwise(ends), decays, strict=True)
            ]
        elif name.endswith("weight") and "norm" not in name:
            ranges.append((start, start + parameter.numel(), base))
        start += parameter.numel()
    return ranges


def code_decay(weight_decay: float, rows_per_code: float) -> float:
    """Return the decay of weights that stand for one code each: more than others' where a code has few rows.

    >>> [round(code_decay(1.0, rows), 2) for rows in (10, 135, 540, 54_000)]
    [3.0, 2.0, 1.0, 0.1]
    """
    return weight_decay * min(MAX_CODE_DECAY, max(MIN_CODE_DECAY, math.sqrt(EVEN_CODE_ROWS / rows_per_code)))


def code_rate(rows_per_code: float) -> float:
    """Return the factor of the learning rate of embeddings whose codes have so many rows on average.

    >>> [round(code_rate(rows), 2) for rows in (10, 135, 540, 54_000)]
    [0.1, 0.25, 1.0, 1.0]
    """
    return min(1.0, max(MIN_CODE_RATE, rows_per_code / EVEN_CODE_ROWS))


def flatten(model: nn.Module) -> Tensor:
    """Return a copy of the trained parameters as one vector ``(P,)``."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained_parameters(model)])


def to_tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """Move a batch to a device; through pinned memory and without waiting when that is CUDA."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type != "cuda":
        return tensors
    # From pageable memory the copy would be made in two, and waited for. The loader's buffers are pinned as they are.
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}


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

    The rows, at least one, are computed in ``config.accumulate`` parts, fewer where there are too few rows, whose
    gradients add up. The host waits for nothing here.
    """
    return add_in_parts(batch, config, lambda part, total: _add_part(model, part, config, total))


def add_in_parts(
    batch: dict[str, Tensor], config: ResolvedTrainConfig, add_part: Callable[[dict[str, Tensor], Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Add the gradients of a batch's parts; return the batch's mean loss and its weight, scalars.

    Args:
        batch: The rows, at least one.
        config: Says how many parts.
        add_part: Given a part and the batch's weight, adds a gradient and returns what the part adds to the loss.
    """
    rows = len(batch["labels"])
    # The weight of the whole slice: the losses of its parts then add up to its mean.
    weight = cell_weights(batch["labels"], batch.get("weight"), config.label_weights).sum()
    size = -(-rows // config.accumulate)
    losses = []
    for start in range(0, rows, size):
        part = {name: tensor[start : start + size] for name, tensor in batch.items()}
        losses.append(add_part(part, weight))
    return torch.stack(losses).sum(), weight


def _add_part(model: TabularModel, part: dict[str, Tensor], config: ResolvedTrainConfig, total: Tensor) -> Tensor:
    """Add the gradient of some rows of a batch; return what they add to its mean loss."""
    label_weights = constants(config.label_weights, total.device) if config.label_weights else None
    terms = LossTerms(config.pos_weight, label_weights, total)
    done = add_step_gradient(model, part, terms, bf16=config.precision == "bf16")
    if done is not None:
        return done
    return add_part_gradient(model.member_logits, part, config, total)


def add_part_gradient(
    member_logits: Logits, part: dict[str, Tensor], config: ResolvedTrainConfig, total: Tensor
) -> Tensor:
    """Add the gradient of some rows of a batch by a backward pass; return what they add to its mean loss."""
    loss = part_loss(member_logits, part, config, total)
    with gradients_in_place():
        torch.autograd.backward(loss)
    return loss.detach()


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
