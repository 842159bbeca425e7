"""Which architecture predicts unseen rows better: small networks are trained on a sample and compared.

Most tables are noisy: few and broad basis functions and dropout fit least of the noise. Measurements and images are
not: twice the basis functions learn more of them. A second hidden layer pays where many columns interact, as no sum of
pairs of them does. Rows that no network has seen show which of these holds. Rows of a group are on one side, as in the
search for crosses.

Shape suffixes: N rows.
"""

import logging
import math
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

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
from dkan_core.training.setup.sizing import DEPTH_SEARCH_ROWS, NO_DROPOUT, SEARCH_ROWS, deepened, refined
from dkan_core.training.state.adamw import AdamState
from dkan_core.training.state.parameter_store import Rules
from dkan_core.utils.torch_resources import torch_threads

# The first rows of the train split, which are shuffled, and values (rows times columns) at most.
SAMPLE_ROWS, SAMPLE_VALUES = 100_000, 8_000_000
# One row, or one group of rows, out of so many is held out. Groups may be large: outside of these shares of the rows,
# nothing can be told.
HELD_OUT = 5
MIN_HELD_OUT, MAX_HELD_OUT = 0.05, 0.4
SHALLOW, DEEP = (32,), (32, 16)
# Of a trial: enough to see so many rows.
TRIAL_ROWS, MIN_TRIAL_EPOCHS, MAX_TRIAL_EPOCHS = 100_000, 3, 6


@dataclass(frozen=True)
class Proof:
    """What must be gained in log loss to change the architecture."""

    errors: float
    """Standard errors of the difference."""
    share: float
    """Share of the log loss: with many rows or labels, far less is significant, and worth nothing."""


# With each of three seeds, more basis functions gain 0.048 to 0.34 of the log loss, and 2.1 to 22 errors, on 8 of 67
# real data sets of 2,000 rows or more; with one or two seeds, enough on four others. The other 55, among them all of
# 50,000 rows and more, stay below one of these bounds with every seed.
FINE_PROOF = Proof(errors=2.0, share=0.03)
# A second layer gains 5 to 21 errors on generated data that need it, and 3.9 at most on seven real data sets of 50,000
# rows and more, three seeds each.
DEEP_PROOF = Proof(errors=4.0, share=0.015)

CPU = torch.device("cpu")

logger = logging.getLogger(__name__)


def search_architecture(
    reader: RowReader, prepared: PreparedData, architecture: ModelConfig, config: ResolvedTrainConfig
) -> ResolvedTrainConfig:
    """Return the settings with the basis functions, hidden layers and dropout that are best; it takes seconds.

    Args:
        reader: The train split.
        prepared: The data set.
        architecture: That of the network without a search.
        config: Settings of the run.
    """
    columns = architecture.num_numeric + len(architecture.cardinalities) + prepared.preprocessor.row_codes
    rows = min(reader.rows, SAMPLE_ROWS, SAMPLE_VALUES // columns)
    if rows < SEARCH_ROWS:
        return config
    sample = next(all_batches(FirstRows(reader, rows), rows))
    held_out_N = _held_out(sample)
    if not MIN_HELD_OUT <= held_out_N.mean() <= MAX_HELD_OUT:
        logger.info("too few groups of rows to compare architectures")
        return config
    seen, unseen = ({name: array[rows_N] for name, array in sample.items()} for rows_N in (~held_out_N, held_out_N))
    logger.info("comparing architectures: small networks are trained on %s rows", f"{len(seen['labels']):,}")
    small = architecture.model_copy(update={"members": 1, "hidden": SHALLOW, "sketch_rank": 0, "sketch_seed": 0})

    def losses(of: ResolvedTrainConfig, hidden: tuple[int, ...] = SHALLOW) -> npt.NDArray[np.float64]:
        network = small.model_copy(update={"hidden": hidden, "num_centers": of.num_centers, "dropout": of.dropout})
        # More threads gain nothing with such small networks, and cost a third more CPU time with two.
        with torch_threads(1):
            return _losses(_trained(network, seen, prepared, config), unseen, config)

    # Of many rare categories networks may learn nothing but noise, and one with other basis functions learn less of it.
    constant = _losses(untrained_model(small, prepared, config).eval(), unseen, config).mean()
    tries_depth = rows >= DEPTH_SEARCH_ROWS
    # With dropout, such small networks learn too slowly for a second layer to be of use.
    plain = replace(config, dropout=NO_DROPOUT) if tries_depth else config
    fine = refined(config)
    plain_N, fine_N = losses(plain), losses(fine)
    helps = partial(_helps, constant=constant, labels=len(prepared.labels))
    is_fine = helps(f"{fine.num_centers} basis functions and no dropout", plain_N, fine_N, FINE_PROOF)
    found = fine if is_fine else config
    if not tries_depth:
        return found
    deep = deepened(found)
    shallow_N = fine_N if is_fine else plain_N
    return deep if helps("a second hidden layer", shallow_N, losses(deep, DEEP), DEEP_PROOF) else found


def _helps(
    change: str,
    without_N: npt.NDArray[np.float64],
    with_N: npt.NDArray[np.float64],
    proof: Proof,
    *,
    constant: float,
    labels: int,
) -> bool:
    """Tell whether the losses ``(N,)`` are lower with a change, and lower than a constant's.

    Args:
        change: What the log calls it.
        without_N: Losses without it.
        with_N: Losses with it.
        proof: How much lower they must be.
        constant: Mean loss of the label's frequency as the prediction for every row.
        labels: How many there are, whose losses are summed.
    """
    gain_N = without_N - with_N
    least = max(proof.errors * gain_N.std() / math.sqrt(len(gain_N)), proof.share * without_N.mean())
    helps = bool(gain_N.mean() > least and with_N.mean() < constant)
    means = (mean / labels for mean in (with_N.mean(), without_N.mean(), least))
    text = "%s: %s; log loss on unseen rows %.4f, without %.4f, and at least %.4f less is asked for"
    logger.info(text, change, "yes" if helps else "no", *means)
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
    decayed = decayed_ranges(model, settings, reader.rows)
    rules = Rules.from_config(settings, reader.rows, decayed, learning_rate_factors(model, settings, reader.rows))
    state = AdamState.starting_at(flatten(model).numpy())
    steps = rules.schedule.steps_per_epoch
    with closing(SliceBatches(reader, settings, 0)) as batches:
        host = HostSteps(Replica(model, CPU), batches, rules)
        for epoch in range(epochs):
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
