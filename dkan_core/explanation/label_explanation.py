"""All that is read from a model about a label: importances, curves, interactions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.explanation.additive import AdditiveCurves
from dkan_core.explanation.bands import LabelSample, standard_errors
from dkan_core.explanation.columns import Column, source_columns, sparse_columns
from dkan_core.explanation.curves import Curve, ReadCurve, describe_curve, read_curve, read_term
from dkan_core.explanation.ids import ColumnIds, read_ids
from dkan_core.explanation.importance import Advance, Importance, add_precision_drops, measure_effects, rank_by_effect
from dkan_core.explanation.interactions import Interaction, PairMap, find_interactions, is_varied, map_pair
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.explanation.shifts import ExplanationComparison
from dkan_core.explanation.slopes import add_slopes, measure_slopes
from dkan_core.explanation.term_tables import TermTable, pairs_of, term_tables
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import check_probabilities, to_probability
from dkan_core.utils.arrays import Array, Arrays, Float64
from dkan_core.utils.progress import progress
from dkan_core.utils.torch_resources import best_device, torch_threads

CurveWithErrors = tuple[ReadCurve, Float64 | None]
"""A curve and its standard error at each point, where that is known."""

# Columns whose pairs are all measured: 28 pairs. Their number grows with the square.
PAIRED = 8
# Values of a column in a pair. The cost of a pair is their square times its rows: seven are the fewest that show a
# bend on both sides of the middle. A map, which is drawn, has more.
PAIR_BINS, MAP_BINS = 7, 16
# Values in the map of a pair with sharp effects, such as latitude and longitude: one whose term has more than
# ``SHARP_TERM_BINS`` bins on both sides.
SHARP_MAP_BINS, SHARP_TERM_BINS = 48, 64
# Rows over which a pair is averaged; the mean over 100 moves little from sample to sample.
PAIR_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is computed; every count is a limit, so that the seconds are bounded whatever the data."""

    top: int = 12
    """Columns whose curve is read."""

    shuffles: int = 4
    """Shuffles of a column for its loss of average precision; 0 leaves it out."""

    slopes: bool = True
    """Whether gradients are taken."""

    curve_rows: int = 500
    """Individual curves behind each curve."""

    maps: int = 3
    """Pairs that are drawn; 0 leaves interactions out, and the tables of an additive model's terms."""

    cells: float = 1e8
    """Stored values that each step may read, which is what bounds wide data."""


@dataclass(frozen=True, kw_only=True)
class LabelExplanation:
    """What a model learned about one label."""

    label: str
    average_precision: float | None
    """On the rows read; None where they are all of one class."""

    importance: list[Importance] = field(repr=False)
    """Every source column, the largest effect first."""

    curves: list[Curve] = field(repr=False)
    """The curves of the most important columns, in that order."""

    interactions: list[Interaction] = field(repr=False)
    """Every pair of the most important columns, the strongest first; all pairs of an additive model."""

    maps: list[PairMap] = field(repr=False)
    """The strongest pairs over a grid, in that order."""

    ids: list[ColumnIds] = field(default_factory=list, repr=False)
    """The strongest ids of each column of ids."""

    intercept: float | None = None
    """What the terms of an additive model are added to, in log-odds."""

    terms: list[TermTable] | None = field(default=None, repr=False)
    """All terms of an additive model, the strongest first."""

    against: ExplanationComparison | None = field(default=None, repr=False)
    """What an earlier model had learned, where one is given."""

    @property
    def shown(self) -> int:
        """How many columns, the most important ones, have a curve or a table of ids."""
        return len(self.curves) + len(self.ids)


def read_effects(
    saved: SavedModel, arrays: Arrays, labels: Sequence[str], *, effort: Effort, seed: int
) -> dict[str, list[Importance]]:
    """Return how far each column moves the log-odds of each label, by one pass over the rows for all labels."""
    device = best_device()
    model, columns = saved.module.to(device), _columns(saved)
    indices = [saved.config.labels.index(label) for label in labels]
    with torch_threads(_threads(model)), progress(f"{len(labels)} labels", len(columns), "columns") as advance:
        response = ModelResponse(model, device, indices, arrays)
        found = measure_effects(response, columns, cells=effort.cells, seed=seed, advance=advance)
    return dict(zip(labels, found, strict=True))


def _columns(saved: SavedModel) -> list[Column]:
    """Return all columns that a model reads, those of ids last."""
    config = saved.config
    # If the model has no weights for a value code, its curve cannot jump there.
    exact = {index for group in config.one_hot_groups for index in group}
    exact |= {*config.blended.coded} if config.blended is not None else set()
    return [*source_columns(saved.preprocessor, exact), *sparse_columns(saved.preprocessor)]


def _threads(model: TabularModel) -> int:
    """Return how many threads compute what a model answers to changed rows."""
    # If only changes are computed, batches are so small that synchronizing threads costs more than they save: ten times
    # as much on two busy cores.
    return 1 if model.first_layer_is_sum else torch.get_num_threads()


def read_label(
    saved: SavedModel,
    arrays: Arrays,
    *,
    split: str,
    label: str,
    effort: Effort,
    seed: int,
    drawn: Sequence[str] | None = None,
    effects: Sequence[Importance] | None = None,
) -> LabelExplanation:
    """Read what a model learned about a label off its answers on some rows.

    Args:
        saved: The model.
        arrays: Prepared rows with their ``labels``, which are the model's.
        split: Where the rows are from.
        label: The label to explain.
        effort: How much to compute.
        seed: Decides the shuffles.
        drawn: Columns to draw curves of, where the model has them. Default: the most important ones.
        effects: What ``read_effects`` has found of the label, if it was asked.

    Raises:
        DataError: The model gives no probability for a row.
    """
    device = best_device()
    model = saved.module.to(device)
    index = saved.config.labels.index(label)
    columns = _columns(saved)
    by_name = {column.name: column for column in columns}
    steps = _step_count(model, effort, len(columns), ranked=bool(effects))
    with torch_threads(_threads(model)), progress(f"explaining {label}", steps, "steps") as advance:
        response = ModelResponse(model, device, [index], arrays)
        check_probabilities(to_probability(response.unclipped_NL), saved.config.labels, split)
        reader = _LabelReader(
            saved=saved,
            index=index,
            columns=columns,
            response=response,
            labels_NL=arrays["labels"][:, [index]],
            weight_N=arrays.get("weight"),
            effort=effort,
            seed=seed,
            advance=advance,
        )
        ranked = reader.rank(effects)
        names = [importance.name for importance in ranked[: effort.top]] if drawn is None else drawn
        best = [by_name[name] for name in names if name in by_name]
        ranked = reader.with_precision_drops(ranked, best)
        ids = [read_ids(response, column, effort.curve_rows) for column in columns if column.sparse is not None]
        # Ids have no order to draw a curve along, and are not paired.
        best = [column for column in best if column.sparse is None]
        curves = reader.curves(best)
        terms = None if reader.additive is None else reader.additive.terms
        tables = term_tables(terms, saved.preprocessor, index) if terms is not None and effort.maps else None
        pairs = pairs_of(tables or ()) or reader.interactions(best)
        maps = reader.maps([(by_name[pair.first], by_name[pair.second]) for pair in pairs[: effort.maps]])
    return LabelExplanation(
        label=label,
        average_precision=reader.average_precision(),
        importance=ranked,
        curves=curves,
        interactions=pairs,
        maps=maps,
        ids=ids,
        intercept=None if terms is None else float(terms.intercept_L[index]),
        terms=tables,
    )


def _paired(model: TabularModel, effort: Effort, columns: int) -> int:
    """Return of how many columns every pair is measured."""
    # The pairs of an additive model are known already.
    return min(PAIRED, effort.top, columns) if effort.maps and not isinstance(model, AdditiveFastKAN) else 0


def _step_count(model: TabularModel, effort: Effort, columns: int, *, ranked: bool) -> int:
    """Return how many steps ``read_label`` takes, ``ranked`` if the columns' effects are known."""
    pairs = math.comb(_paired(model, effort, columns), 2)
    top = min(effort.top, columns)
    return (0 if ranked else columns) + top * (1 + bool(effort.shuffles)) + pairs + effort.maps


@dataclass(frozen=True, kw_only=True)
class _LabelReader:
    """Reads the parts of the explanation of a label."""

    saved: SavedModel
    index: int
    """The label's, among those of the model."""

    columns: Sequence[Column]
    """All that the model reads."""

    response: ModelResponse
    labels_NL: Array
    """Of this label alone."""

    weight_N: Array | None
    effort: Effort
    seed: int
    advance: Advance

    @cached_property
    def additive(self) -> AdditiveCurves | None:
        """What an additive model adds up; None for another one."""
        model = self.saved.module
        return AdditiveCurves(model) if isinstance(model, AdditiveFastKAN) else None

    def average_precision(self) -> float | None:
        """Return that of the rows; None where they are all of one class."""
        precision = macro_average_precision(self.labels_NL, self.response.log_odds_NL, self.weight_N)
        return None if np.isnan(precision) else precision

    def rank(self, effects: Sequence[Importance] | None) -> list[Importance]:
        """Return the effect of every column, the largest first, with its slope if it has one.

        Args:
            effects: What ``read_effects`` has found, if it was asked.
        """
        arrays, cells = self.response.arrays, self.effort.cells
        response, columns, seed = self.response, self.columns, self.seed
        measured = effects or measure_effects(response, columns, cells=cells, seed=seed, advance=self.advance)[0]
        ranked = rank_by_effect(response, columns, measured, top=self.effort.top, cells=cells, seed=seed)
        # A table of values has steps and no gradient.
        if not self.effort.slopes or "numeric" not in arrays or self.additive is not None:
            return ranked
        slopes_F = measure_slopes(self.saved.module, best_device(), arrays, self.index, cells)
        return add_slopes(ranked, self.columns, slopes_F)

    def with_precision_drops(self, ranked: list[Importance], columns: Sequence[Column]) -> list[Importance]:
        """Return the importances with the permutation importance of ``columns``, if it is wanted."""
        if not self.effort.shuffles:
            return ranked
        return add_precision_drops(
            self.response,
            self.labels_NL,
            self.weight_N,
            ranked,
            columns,
            shuffles=self.effort.shuffles,
            cells=self.effort.cells,
            seed=self.seed,
            advance=self.advance,
        )

    def curves(self, columns: Sequence[Column]) -> list[Curve]:
        """Return the curves of columns, with bands and formulas."""
        counts = self.saved.preprocessor.counts or {}
        # Each row is in exactly one bin of each column, so any histogram sums to the number of rows.
        train_rows = sum(next(iter(counts.values()), []))
        terms = self.additive
        read = self._read_curves(columns, train_rows) if terms is None else self._read_terms(terms, columns)
        return [describe_curve(curve, error_P, counts.get(curve.grid.column.name)) for curve, error_P in read]

    def _read_terms(self, terms: AdditiveCurves, columns: Sequence[Column]) -> Sequence[CurveWithErrors]:
        """Return the terms of an additive model with the standard errors by its members."""
        read = [read_term(terms, self.response, column, label=self.index) for column in columns]
        self.advance(len(columns))
        return read

    def _read_curves(self, columns: Sequence[Column], train_rows: int) -> Sequence[CurveWithErrors]:
        """Return curves, with standard errors if the model says how many rows it was trained on."""
        # Shared evenly, so that the last curve is as exact as the first one.
        cells = self.effort.cells / min(self.effort.top, len(self.columns))
        read = []
        for column in columns:
            read.append(read_curve(self.response, column, rows=self.effort.curve_rows, cells=cells))
            self.advance(1)
        measured = LabelSample(self.labels_NL[:, 0], self.response.log_odds_NL[:, 0], self.weight_N, train_rows)
        errors: Sequence[Float64 | None] = standard_errors(read, measured) if train_rows else []
        return list(zip(read, errors or [None] * len(read), strict=True))

    def interactions(self, columns: Sequence[Column]) -> list[Interaction]:
        """Return the pairs of the first few columns, the strongest first."""
        return find_interactions(
            self.response,
            columns[: _paired(self.saved.module, self.effort, len(self.columns))],
            bins=PAIR_BINS,
            rows=PAIR_ROWS,
            cells=self.effort.cells,
            advance=self.advance,
        )

    def maps(self, pairs: Sequence[tuple[Column, Column]]) -> list[PairMap]:
        """Return the maps of those pairs of which both columns vary."""
        cells = self.effort.cells / max(1, self.effort.maps)
        factor = None if self.additive is None else self.additive.error_factor
        maps = []
        for pair in pairs:
            if all(is_varied(side, self.response.arrays, PAIR_BINS) for side in pair):
                bins = _map_bins(self.saved.config, *pair)
                maps.append(map_pair(self.response, *pair, bins=bins, rows=PAIR_ROWS, cells=cells, error_factor=factor))
            self.advance(1)
        return maps


def _map_bins(config: ModelConfig, first: Column, second: Column) -> int:
    """Return how many bins a side of a pair's map has."""
    shape = config.blended.additive if config.blended else config.additive
    cuts = {each.feature: len(each.cuts) for each in shape.binned} if shape else {}
    fewest = min(cuts.get(column.numeric_index, 0) for column in (first, second))
    return SHARP_MAP_BINS if fewest > SHARP_TERM_BINS else MAP_BINS
