"""Which columns a network ignores: those that do not help to predict rows that no network was trained on.

With few rows, a network fits the noise of columns that do not matter, each a little. Small networks are trained on four
fifths of the rows, five times, and each column's values are shuffled among the other rows: a column is useless unless
that raises the loss (permutation importance: Breiman 2001, doi:10.1023/A:1010933404324). Networks without the useless
columns must predict those rows better, since each of two redundant columns looks useless beside the other.

Of many columns that each help a little, some raise the loss on the very rows that judge them, and any network predicts
those rows better without them. So the selection itself is validated, too: columns chosen on the rows of four folds are
left out of a network that predicts those of the fifth (Ambroise and McLachlan 2002, doi:10.1073/pnas.102102699).

Shape suffixes: N rows, M changed rows, F folds, C columns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader
from dkan_core.explanation.columns import Column, redrawn, source_columns
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.model.architecture import ModelConfig, ignoring
from dkan_core.model.base import TabularModel
from dkan_core.training.setup.trials import (
    CPU,
    FOLDS,
    MinImprovement,
    can_be_held_out,
    folds_of,
    helps,
    improves,
    loss_of,
    losses,
    mean_weight,
    sample_of,
    small_network,
    split_at,
    trained,
)
from dkan_core.utils.arrays import Arrays, Float64
from dkan_core.utils.messages import some_of
from dkan_core.utils.torch_resources import torch_threads

# With more rows, a network learns by itself to ignore useless columns; with more values, trials take too long.
MAX_ROWS, MAX_VALUES = 30_000, 4_000_000
# Most members of a small network: with one, chance decides which interactions it learns.
MAX_MEMBERS = 4
# A column is useful if shuffling it raises the loss by at least so many standard errors of the mean.
USEFUL = 1.0
MIN_IMPROVEMENT = MinImprovement(standard_errors=2.5, relative=0.01)
# The same where the columns to leave out were chosen on other rows.
MIN_UNBIASED_IMPROVEMENT = MinImprovement(standard_errors=0.0, relative=0.01)
# Most columns that a line of the log names.
MAX_NAMED = 12

Part = tuple[Arrays, Arrays]
"""Rows to train on, and rows to predict."""


@dataclass(frozen=True)
class _Rises:
    """The loss on rows that networks of all columns have not seen, and how much shuffling a column raises it."""

    losses: list[Float64]
    """Losses of the rows of each fold."""

    sum_FC: Float64
    square_FC: Float64

    @property
    def loss_N(self) -> Float64:
        """The loss of each row."""
        return np.concatenate(self.losses)

    def useless(self, folds: Sequence[int]) -> list[int]:
        """Return the indices of the columns that do not lower the loss of the rows of some folds."""
        rows = sum(len(self.losses[fold]) for fold in folds)
        rise_C, square_C = self.sum_FC[[*folds]].sum(0), self.square_FC[[*folds]].sum(0)
        # The sums include only rows whose value changed; the loss of all others rises by 0.
        error_C = np.sqrt(np.maximum(square_C - rise_C**2 / rows, 0))
        indices: list[int] = np.flatnonzero(rise_C <= USEFUL * error_C).tolist()
        return indices


def select_features(
    reader: RowReader, prepared: PreparedData, architecture: ModelConfig, config: ResolvedTrainConfig
) -> ModelConfig:
    """Return the architecture of a network that ignores useless columns if it predicts unseen rows better."""
    columns = source_columns(prepared.preprocessor)
    most_rows = min(MAX_ROWS, MAX_VALUES // prepared.preprocessor.row_values)
    # A column that is useless for one label may help another, whose loss is lost in the sum over labels. Sketches mix
    # all inputs, and so does a LayerNorm.
    mixes_inputs = architecture.sketch_rank > 0 or architecture.input_norm != "none"
    if len(prepared.labels) > 1 or mixes_inputs or reader.rows > most_rows:
        return architecture
    sample = sample_of(reader, prepared)
    if sample is None:
        return architecture
    fold_N = folds_of(sample)
    folds = [fold_N == fold for fold in range(FOLDS)]
    if not all(map(can_be_held_out, folds)):
        return architecture
    trials = _Trials([split_at(sample, held_N) for held_N in folds], prepared, config)
    with torch_threads(1):
        found = trials.measure(architecture, columns)
        useless = found.useless(range(FOLDS))
        fewer = _without(useless, columns, architecture)
        if fewer is architecture:
            return architecture
        fewer_N, least = trials.losses([fewer] * FOLDS), MIN_IMPROVEMENT
        if improves(found.loss_N, fewer_N, least):
            others = [found.useless([other for other in range(FOLDS) if other != fold]) for fold in range(FOLDS)]
            of_folds = [_without(indices, columns, architecture) for indices in others]
            fewer_N, least = trials.losses(of_folds), MIN_UNBIASED_IMPROVEMENT
    change = f"ignoring {some_of([columns[index].name for index in useless], MAX_NAMED)}"
    weight = mean_weight(sample, config)
    has_less = helps(change, found.loss_N, fewer_N, least, constant=math.inf, weight=weight)
    return fewer if has_less else architecture


def _without(useless: Sequence[int], columns: Sequence[Column], whole: ModelConfig) -> ModelConfig:
    """Return the architecture without some columns; unchanged if there are none, or if no others would be left."""
    if not useless or (len(useless) == len(columns) and not whole.sparse):
        return whole
    indices = [each for index in useless for each in columns[index].indices]
    return ignoring(whole, [index if name == "numeric" else whole.num_numeric + index for name, index in indices])


@dataclass(frozen=True)
class _Trials:
    """Small networks, one for each fold, trained on the rows of the others."""

    parts: list[Part]
    prepared: PreparedData
    config: ResolvedTrainConfig

    def losses(self, architectures: Sequence[ModelConfig]) -> Float64:
        """Return the loss of each row ``(N,)`` by a network of its fold's architecture."""
        return np.concatenate([loss_M for _, _, loss_M in self._run(architectures)])

    def measure(self, architecture: ModelConfig, columns: Sequence[Column]) -> _Rises:
        """Return the effect of shuffling each column on the loss of rows that the networks have not seen."""
        found, (sum_FC, square_FC) = [], np.zeros((2, FOLDS, len(columns)))
        for fold, (model, unseen, loss_M) in enumerate(self._run([architecture] * FOLDS)):
            found.append(loss_M)
            for index, rise_M in enumerate(_rises(model, columns, unseen, self.config)):
                sum_FC[fold, index] = rise_M.sum()
                square_FC[fold, index] = np.square(rise_M).sum()
        return _Rises(found, sum_FC, square_FC)

    def _run(self, architectures: Sequence[ModelConfig]) -> Iterator[tuple[TabularModel, Arrays, Float64]]:
        """Yield each network, the rows that it has not seen, and the loss of each of them ``(M,)``."""
        for architecture, (seen, unseen) in zip(architectures, self.parts, strict=True):
            network = small_network(architecture).model_copy(update={"members": min(architecture.members, MAX_MEMBERS)})
            model = trained(network, seen, self.prepared, self.config)
            yield model, unseen, losses(model, unseen, self.config)


def _rises(
    model: TabularModel, columns: Sequence[Column], rows: Arrays, config: ResolvedTrainConfig
) -> Iterator[Float64]:
    """Yield by how much shuffling each column raises the loss of the rows whose value changes, ``(M,)``."""
    response = ModelResponse(model, CPU, range(len(model.config.labels)), rows)
    before_N = loss_of(torch.from_numpy(response.log_odds_NL), rows, config)
    changes = []
    for column in columns:
        # Seeded by the column's name, so that another column in the data does not change the results of the others.
        generator = np.random.Generator(np.random.PCG64([config.seed, *column.name.encode()]))
        rows_M, cells = redrawn(response.arrays, column, generator.permutation(len(rows["labels"])))
        changes.append((rows_M, [(column, cells)]))
    for (rows_M, _), after_ML in zip(changes, response.to_changes(changes), strict=True):
        changed = {name: array[rows_M] for name, array in rows.items() if name in ("labels", "weight")}
        yield loss_of(torch.from_numpy(after_ML), changed, config) - before_N[rows_M]
