"""Whether networks get a second hidden layer: two small ones are trained on a sample, one of them with such a layer.

A second layer pays where many columns interact, as no sum of pairs of them does; elsewhere it costs time and a little
average precision. Rows that neither network has seen show which of the two holds. Rows of a group are on one side, as
in the search for crosses.

Shape suffixes: N rows.
"""

import logging
import math
from contextlib import closing

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import FirstRows, RowReader, SliceBatches, all_batches
from dkan_core.evaluation.prediction import SCORING_ROWS, log_odds
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import cell_weights, decayed_ranges, flatten, to_tensors, untrained_model
from dkan_core.training.compute.local_steps import HostSteps
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.model_parts import learning_rate_factors
from dkan_core.training.setup.sizing import DEEP_DROPOUT
from dkan_core.training.state.adamw import AdamState
from dkan_core.training.state.parameter_store import Rules

# The first rows of the train split, which are shuffled, and values (rows times columns) at most. Of fewer rows than the
# second number, networks learn too little to tell.
SAMPLE_ROWS, MIN_SAMPLE_ROWS, SAMPLE_VALUES = 100_000, 50_000, 8_000_000
# One row, or one group of rows, out of so many is held out. Groups may be large: outside of these shares of the rows,
# nothing can be told.
HELD_OUT = 5
MIN_HELD_OUT, MAX_HELD_OUT = 0.05, 0.4
SHALLOW, DEEP = (32,), (32, 16)
EPOCHS = 3
# Standard errors of the difference in log loss that the second layer must gain. It gains 5 to 21 on generated data that
# need it, and 3.9 at most on seven real data sets of 50,000 rows and more, three seeds each.
MIN_ERRORS = 4.0
# Share of the log loss that it must gain: with many rows or labels, far less is significant, and worth nothing.
MIN_GAIN = 0.015

CPU = torch.device("cpu")

logger = logging.getLogger(__name__)


def second_layer_helps(
    reader: RowReader, prepared: PreparedData, architecture: ModelConfig, config: ResolvedTrainConfig
) -> bool:
    """Tell whether a second hidden layer predicts unseen rows better; it takes seconds.

    Args:
        reader: The train split.
        prepared: The data set.
        architecture: That of the network without one.
        config: Settings of the run.
    """
    columns = architecture.num_numeric + len(architecture.cardinalities) + prepared.preprocessor.row_codes
    rows = min(reader.rows, SAMPLE_ROWS, SAMPLE_VALUES // columns)
    if rows < MIN_SAMPLE_ROWS:
        return False
    sample = next(all_batches(FirstRows(reader, rows), rows))
    held_out_N = _held_out(sample)
    if not MIN_HELD_OUT <= held_out_N.mean() <= MAX_HELD_OUT:
        logger.info("too few groups of rows to tell whether a second hidden layer helps")
        return False
    seen, unseen = ({name: array[rows_N] for name, array in sample.items()} for rows_N in (~held_out_N, held_out_N))
    logger.info("does a second hidden layer help? training two small networks on %s rows", f"{len(seen['labels']):,}")
    # With dropout, such small networks learn too slowly for the second layer to be of use.
    small = architecture.model_copy(update={"members": 1, "dropout": DEEP_DROPOUT, "sketch_rank": 0, "sketch_seed": 0})
    networks = (small.model_copy(update={"hidden": hidden}) for hidden in (SHALLOW, DEEP))
    shallow_N, deep_N = (_losses(_trained(network, seen, prepared, config), unseen, config) for network in networks)
    gain_N = shallow_N - deep_N
    error = gain_N.std() / math.sqrt(len(gain_N))
    helps = bool(gain_N.mean() > max(MIN_ERRORS * error, MIN_GAIN * shallow_N.mean()))
    losses = [each_N.mean() / len(prepared.labels) for each_N in (shallow_N, deep_N)]
    logger.info("%s: log loss on unseen rows %.4f without it, %.4f with it", "it does" if helps else "no", *losses)
    return helps


def _held_out(sample: Arrays) -> npt.NDArray[np.bool_]:
    """Return which rows ``(N,)`` no network is trained on: rows of a group or of a stretch of time are on one side."""
    rows = len(sample["labels"])
    number_N = np.unique(sample["group"], return_inverse=True)[1] if "group" in sample else np.arange(rows)
    shares = np.bincount(number_N % HELD_OUT, minlength=HELD_OUT) / rows
    return np.asarray(number_N % HELD_OUT == np.abs(shares - 1 / HELD_OUT).argmin())


def _trained(
    architecture: ModelConfig, rows: Arrays, prepared: PreparedData, config: ResolvedTrainConfig
) -> TabularModel:
    """Return a network trained on some rows, in eval mode."""
    reader = ArraysReader(rows)
    asked = TrainConfig(
        members=1,
        hidden=architecture.hidden,
        epochs=EPOCHS,
        weight_decay=config.weight_decay,
        pos_weight=config.pos_weight,
        label_weights=config.label_weights,
        seed=config.seed,
        device="cpu",
        workers=1,
    )
    settings = resolve(asked, reader.rows, len(prepared.labels))
    model = untrained_model(architecture, prepared, settings)
    decayed = decayed_ranges(model, settings, reader.rows)
    rules = Rules.from_config(settings, reader.rows, decayed, learning_rate_factors(model, settings, reader.rows))
    state = AdamState.starting_at(flatten(model).numpy())
    steps = rules.schedule.steps_per_epoch
    with closing(SliceBatches(reader, settings, 0)) as batches:
        host = HostSteps(Replica(model, CPU), batches, rules)
        for epoch in range(EPOCHS):
            host.take(state, range(epoch * steps, (epoch + 1) * steps), 0, 1.0)
    return model.eval()


def _losses(model: TabularModel, rows: Arrays, config: ResolvedTrainConfig) -> npt.NDArray[np.float64]:
    """Return the loss of each row ``(N,)``, which training lowers: the sum over its labels."""
    found, pos_weight = [], torch.tensor(config.pos_weight)
    for batch in all_batches(ArraysReader(rows), SCORING_ROWS):
        tensors = to_tensors({name: batch[name] for name in ("labels", "weight") if name in batch}, CPU)
        weight_NL = cell_weights(tensors["labels"], tensors.get("weight"), config.label_weights)
        # What is not measured weighs nothing.
        labels_NL, logits_NL = tensors["labels"].float().clamp(max=1), log_odds(model, batch, CPU)
        loss_NL = F.binary_cross_entropy_with_logits(logits_NL, labels_NL, reduction="none", pos_weight=pos_weight)
        found.append((loss_NL * weight_NL).sum(1).double().numpy())
    return np.concatenate(found)
