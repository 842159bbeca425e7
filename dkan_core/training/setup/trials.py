"""Small networks that are trained on a sample of the train split, and their loss on its other rows.

That loss decides about the architecture (``architecture_search``) and about the columns that the network reads
(``feature_selection``).

Shape suffixes: N rows, L labels.
"""

import logging
import math
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import RowReader, SliceBatches, all_batches, read_sample
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.scoring.probabilities import SCORING_ROWS, log_odds
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.compute.local_steps import HostSteps
from dkan_core.training.compute.loss import cell_weights
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.search_space import SEARCH_ROWS
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.adamw import initial_state
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Arrays, Float64, Int64

# Most rows of a sample of the train split, and most values (rows times columns).
SAMPLE_ROWS, SAMPLE_VALUES = 100_000, 8_000_000
# One row, or group of rows, in so many is held out. As groups may be large, a fold must have a share of the rows within
# these bounds.
FOLDS = 5
MIN_HELD_OUT, MAX_HELD_OUT = 0.05, 0.4
HIDDEN = (32,)
# Epochs of a trial: enough to see this many rows.
TRIAL_ROWS, MIN_TRIAL_EPOCHS, MAX_TRIAL_EPOCHS = 100_000, 3, 6

CPU = torch.device("cpu")

Bools = npt.NDArray[np.bool_]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MinImprovement:
    """Least gain in log loss that justifies changing a network."""

    standard_errors: float
    """Standard errors of the difference."""

    relative: float
    """Share of the log loss: with many rows or labels, far smaller gains are significant, but worthless."""


def sample_of(reader: RowReader, prepared: PreparedData) -> Arrays | None:
    """Return a sample of the train split, as many rows as trials use; None if they are too few to decide anything."""
    rows = min(reader.rows, SAMPLE_ROWS, SAMPLE_VALUES // prepared.preprocessor.row_values)
    return read_sample(reader, rows) if rows >= SEARCH_ROWS else None


def folds_of(sample: Arrays) -> Int64:
    """Return each row's fold ``(N,)``; rows of a group or of a stretch of time have the same."""
    rows = len(sample["labels"])
    number_N = np.unique(sample["group"], return_inverse=True)[1] if "group" in sample else np.arange(rows)
    fold_N: Int64 = number_N % FOLDS
    return fold_N


def held_out(sample: Arrays) -> Bools | None:
    """Return which rows are held out ``(N,)``: a fold, of about an even share; None where no fold can be."""
    fold_N = folds_of(sample)
    folds = (fold_N == fold for fold in range(FOLDS))
    held_N: Bools = min(folds, key=lambda held_N: abs(held_N.mean() - 1 / FOLDS))
    return held_N if can_be_held_out(held_N) else None


def can_be_held_out(held_N: Bools) -> bool:
    """Return whether a fold has enough rows, and leaves enough."""
    return MIN_HELD_OUT <= float(held_N.mean()) <= MAX_HELD_OUT


def split_at(sample: Arrays, held_N: Bools) -> tuple[Arrays, Arrays]:
    """Return the rows that are not held out, and those that are."""
    seen, unseen = ({name: array[kept_N] for name, array in sample.items()} for kept_N in (~held_N, held_N))
    return seen, unseen


def small_network(architecture: ModelConfig) -> ModelConfig:
    """Return a trial's architecture, given that of the network."""
    return architecture.model_copy(update={"members": 1, "hidden": HIDDEN, "sketch_rank": 0, "sketch_seed": 0})


def trained(
    architecture: ModelConfig, rows: Arrays, prepared: PreparedData, config: ResolvedTrainConfig
) -> TabularModel:
    """Return a network trained on some rows, in eval mode."""
    reader = ArraysReader(rows)
    epochs = min(MAX_TRIAL_EPOCHS, max(MIN_TRIAL_EPOCHS, TRIAL_ROWS // reader.rows))
    asked = TrainConfig(
        members=1,
        hidden=architecture.hidden,
        epochs=epochs,
        weight_decay=config.weight_decay,
        pos_weight=config.pos_weight,
        label_weights=config.label_weights,
        seed=config.seed,
        device="cpu",
        workers=1,
    )
    settings = resolve(asked, reader.rows, len(prepared.labels))
    model = untrained_model(architecture, prepared, settings)
    rules = UpdateRules.from_config(settings, reader.rows, parameter_groups(model, settings, reader.rows))
    state_3P = initial_state(flatten(model).numpy())
    steps = rules.schedule.steps_per_epoch
    with closing(SliceBatches(reader, settings, 0)) as batches:
        host = HostSteps(Replica(model, CPU), batches, rules)
        for epoch in range(epochs):
            host.take(state_3P, range(epoch * steps, (epoch + 1) * steps), 0, 1.0)
    return model.eval()


def losses(model: TabularModel, rows: Arrays, config: ResolvedTrainConfig) -> Float64:
    """Return the loss of each row ``(N,)``, which training lowers: the sum over its labels."""
    batches = all_batches(ArraysReader(rows), SCORING_ROWS)
    return np.concatenate([loss_of(log_odds(model, batch, CPU), batch, config) for batch in batches])


def loss_of(logits_NL: Tensor, rows: Arrays, config: ResolvedTrainConfig) -> Float64:
    """Return the loss of each row ``(N,)``, given its log-odds ``(N, L)``."""
    # Labels that are not measured have weight 0.
    labels_NL = torch.from_numpy(rows["labels"]).float().clamp(max=1)
    loss_NL = F.binary_cross_entropy_with_logits(logits_NL, labels_NL, reduction="none")
    loss_N: Float64 = (loss_NL * _weights_of(rows, config)).sum(1).double().numpy()
    return loss_N


def mean_weight(rows: Arrays, config: ResolvedTrainConfig) -> float:
    """Return the mean over rows of the total weight of a row's measured labels."""
    return _weights_of(rows, config).sum(1).double().mean().item()


def _weights_of(rows: Arrays, config: ResolvedTrainConfig) -> Tensor:
    """Return the weight of each label of each row in the loss, ``(N, L)``: positives ``pos_weight`` times."""
    tensors = to_tensors({name: rows[name] for name in ("labels", "weight") if name in rows}, CPU)
    weight_NL = cell_weights(tensors, config)
    return torch.where(tensors["labels"] == 1, config.pos_weight * weight_NL, weight_NL)


def helps(
    change: str,
    without_N: Float64,
    with_N: Float64,
    min_improvement: MinImprovement,
    *,
    constant: float,
    weight: float,
) -> bool:
    """Return whether the losses ``(N,)`` are lower with a change, and lower than a constant's.

    Args:
        change: Its name in the log.
        without_N: Losses without it.
        with_N: Losses with it.
        min_improvement: How much lower they must be.
        constant: Mean loss of the label's frequency as the prediction for every row.
        weight: Mean over rows of the total weight of a row's measured labels.
    """
    found = improves(without_N, with_N, min_improvement) and bool(with_N.mean() < constant)
    means = (mean / weight for mean in (with_N.mean(), without_N.mean(), _least(without_N, with_N, min_improvement)))
    text = "%s: %s; log loss on unseen rows %.4f instead of %.4f (an improvement of at least %.4f is needed)"
    logger.info(text, change, "used" if found else "not used", *means)
    return found


def improves(without_N: Float64, with_N: Float64, min_improvement: MinImprovement) -> bool:
    """Return whether the losses ``(N,)`` are lower with a change, by at least the required improvement."""
    return bool((without_N - with_N).mean() > _least(without_N, with_N, min_improvement))


def _least(without_N: Float64, with_N: Float64, min_improvement: MinImprovement) -> float:
    standard_error = (without_N - with_N).std() / math.sqrt(len(without_N))
    return float(max(min_improvement.standard_errors * standard_error, min_improvement.relative * without_N.mean()))
