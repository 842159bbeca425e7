"""An additive model: log-odds are an intercept and one number from a table for each feature and each chosen pair.

Stored scores have 256 codes, so that a curve, whatever its basis, is a table of at most 256 numbers: a step computes
the tables from the basis once, and a row is a sum of entries. Each member learns from a share of the rows, always the
same ones (subagging: Buja and Stuetzle 2006, "Observations on bagging"): their mean is the model, and their spread
tells how certain it is.

Shape suffixes: B rows, F numeric features, T features with a term, P pairs, V rows of the table, M members, L labels,
H = M * L, K basis functions, S curved features.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, UNSEEN
from dkan_core.model.additive_shape import BINARY_CODES, PAIR_FUNCTIONS, SCORE_CODES, AdditiveShape, Layout
from dkan_core.model.architecture import (
    ModelConfig,
    additive_layout,
    additive_shape,
    curve_functions,
    sparse_rows,
)
from dkan_core.model.base import TabularModel
from dkan_core.model.decoding import decode_scores, score_codes
from dkan_core.model.dropout import RowDropout, keep_factors
from dkan_core.model.envelope import envelope
from dkan_core.model.fastkan import RadialBasis
from dkan_core.model.kernels import KernelModule, table_sum
from dkan_core.model.sparse_weights import SparseWeights


class AdditiveFastKAN(TabularModel, KernelModule):
    """An additive model.

    Shape:
        - Input: ``numeric`` (B, F), ``categorical`` (B, C) int32 and ``sparse`` (B, S) int32; None where there are no
          such features
        - Output: calibrated log-odds ``(B, L)``, the mean over members
    """

    basis: Tensor
    score_rows: Tensor
    coded: Tensor
    coded_caps: Tensor
    coded_firsts: Tensor
    pair_slots: Tensor
    pair_strides: Tensor
    pair_firsts: Tensor
    bins: Tensor
    first_basis: Tensor
    second_basis: Tensor
    pair_cells: Tensor
    row_weight: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        shape = additive_shape(config)
        self.layout: Layout = additive_layout(config)
        self.first_width = len(config.labels)
        width = config.members * len(config.labels)
        # All zero at the start: members differ by the rows that they see.
        self.table = nn.Parameter(torch.zeros(self.layout.size, width))
        self.ids = SparseWeights(sparse_rows(config), width) if config.sparse else None
        self.curve_weight: nn.Parameter | None = None
        if shape.form == "tables":
            self.register_buffer("row_weight", torch.zeros(self.layout.size))
        elif self.layout.curved:
            functions = curve_functions(config)
            self.curve_weight = nn.Parameter(torch.zeros(len(self.layout.curved), sum(functions), width))
            self._keep("basis", _basis(functions))
        self.pair_weight: nn.Parameter | None = None
        if shape.form == "curves" and self.layout.pairs:
            weights = (len(self.layout.pairs), PAIR_FUNCTIONS, PAIR_FUNCTIONS * width)
            self.pair_weight = nn.Parameter(torch.zeros(weights))
            first_basis, second_basis, cells = _pair_bases(self.layout)
            self._keep("first_basis", first_basis)
            self._keep("second_basis", second_basis)
            self._keep("pair_cells", cells)
        self.bags = RowDropout(config.members, config.dropout, layer=0)
        self._keep("score_rows", _score_rows(config, shape, self.layout))
        coded = self.layout.coded
        self._keep("coded", torch.tensor([term.features[0] - config.num_numeric for term in coded], dtype=torch.long))
        self._keep("coded_caps", torch.tensor([term.size for term in coded], dtype=torch.int32))
        self._keep("coded_firsts", torch.tensor([term.first for term in coded], dtype=torch.int32))
        self._keep_pairs(shape)
        self.signs = dict(shape.monotone)

    def _keep(self, name: str, values: Tensor) -> None:
        self.register_buffer(name, values, persistent=False)

    def _keep_pairs(self, shape: AdditiveShape) -> None:
        """Register what maps the table rows of a pair's features to the row of the pair."""
        slots = {features[0]: index for index, features in enumerate(self.index_features) if len(features) == 1}
        pairs = self.layout.pairs
        sides = [[slots[term.features[side]] for term in pairs] for side in (0, 1)]
        self._keep("pair_slots", torch.tensor(sides, dtype=torch.long))
        self._keep("pair_strides", torch.tensor([term.shape[1] for term in pairs], dtype=torch.int32))
        self._keep("pair_firsts", torch.tensor([term.first for term in pairs], dtype=torch.int32))
        self._keep("bins", torch.from_numpy(bins_of_rows(shape, self.layout)))

    @property
    def first_layer_is_sum(self) -> bool:
        return True

    @property
    def widths(self) -> list[int]:
        """Terms and outputs."""
        return [len(self.layout.terms), len(self.config.labels)]

    @property
    def code_tables(self) -> dict[str, list[int]]:
        return {"table": [term.size for term in self.layout.terms]}

    def tables(self) -> Tensor:
        """Return each member's table: what each code adds to the log-odds, without the intercept.

        Shape:
            - Output: ``(V, H)``
        """
        table_VH: Tensor = self.table
        if self.curve_weight is not None:
            curves_SCH = torch.matmul(self.basis, self.curve_weight)
            stop = len(self.layout.curved) * SCORE_CODES
            table_VH = torch.cat([table_VH[:stop] + curves_SCH.flatten(0, 1), table_VH[stop:]])
        if self.pair_weight is not None:
            stop = self.layout.pairs[0].first
            table_VH = torch.cat([table_VH[:stop], table_VH[stop:] + self._smooth_pairs()])
        return self._monotone(table_VH) if self.signs else table_VH

    def _smooth_pairs(self) -> Tensor:
        """Return the smooth part of the rows of all pairs."""
        assert self.pair_weight is not None
        pairs, functions, _ = self.pair_weight.shape
        by_first_PIX = torch.matmul(self.first_basis, self.pair_weight)
        by_first_PKX = by_first_PIX.view(pairs, -1, functions, self.table.shape[1]).transpose(1, 2).flatten(2)
        both_PJX = torch.matmul(self.second_basis, by_first_PKX)
        both_PJIH = both_PJX.view(pairs, self.second_basis.shape[1], -1, self.table.shape[1])
        smooth_VH: Tensor = both_PJIH.flatten(0, 2)[self.pair_cells]
        return smooth_VH

    def _monotone(self, table_VH: Tensor) -> Tensor:
        """Return the table with a monotone envelope instead of the curve of each feature that must be monotone."""
        parts, stop = [], 0
        for term in self.layout.curved + self.layout.binary:
            sign = self.signs.get(term.features[0])
            if sign is not None:
                # The first code stands for a missing value.
                parts += [table_VH[stop : term.first + 1], envelope(table_VH[term.rows][1:], sign)]
                stop = term.first + term.size
        return torch.cat([*parts, table_VH[stop:]])

    @property
    def index_features(self) -> list[tuple[int, ...]]:
        """The features of each of a row's ``indices``: single ones, then pairs; the numeric ones are counted first."""
        coded = [term.features for term in self.layout.coded]
        return [
            *((feature,) for feature in range(self.config.num_numeric)),
            *coded,
            *(term.features for term in self.layout.pairs),
        ]

    def indices(self, numeric: Tensor | None, categorical: Tensor | None) -> Tensor:
        """Return the rows of the table that each row of data takes, one per term.

        Args:
            numeric: ``(B, F)``; None where there are no numeric features.
            categorical: ``(B, C)`` int32; None where there are no coded features.

        Shape:
            - Output: ``(B, T + P)`` int32
        """
        indices_BT = self.main_indices(numeric, categorical)
        if not self.layout.pairs:
            return indices_BT
        first_BP, second_BP = (self.bins[indices_BT[:, slots_P]] for slots_P in self.pair_slots)
        return torch.cat([indices_BT, first_BP * self.pair_strides + second_BP + self.pair_firsts], dim=1)

    def main_indices(self, numeric: Tensor | None, categorical: Tensor | None) -> Tensor:
        """Return the ``indices`` of single features, ``(B, T)``."""
        parts = []
        if numeric is not None:
            of_feature_F = torch.arange(0, self.score_rows.numel(), SCORE_CODES, device=numeric.device)
            parts.append(self.score_rows.view(-1)[score_codes(numeric).long() + of_feature_F])
        if categorical is not None and len(self.coded):
            codes_BC = categorical[:, self.coded]
            parts.append(codes_BC.masked_fill(codes_BC >= self.coded_caps, UNSEEN) + self.coded_firsts)
        return torch.cat(parts, dim=1)

    def indices_reading(self, slots: Iterable[int], stored_of: Callable[[int], Tensor]) -> Tensor:
        """Return the ``indices`` of those terms that read some features.

        Args:
            slots: Positions of these features in ``index_features``.
            stored_of: Returns the stored scores or codes ``(B,)`` of the feature at a position.

        Shape:
            - Output: ``(B, K)`` int32
        """
        chosen = {*slots}

        @functools.cache
        def main(slot: int) -> Tensor:
            stored_B, coded = stored_of(slot), slot - self.config.num_numeric
            if coded < 0:
                return self.score_rows[slot][score_codes(stored_B).long()]
            return stored_B.masked_fill(stored_B >= self.coded_caps[coded], UNSEEN) + self.coded_firsts[coded]

        indices = [main(slot) for slot in sorted(chosen)]
        for pair, (first, second) in enumerate(self.pair_slots.T.tolist() if self.layout.pairs else ()):
            if first in chosen or second in chosen:
                first_B, second_B = self.bins[main(first)], self.bins[main(second)]
                indices.append(first_B * self.pair_strides[pair] + second_B + self.pair_firsts[pair])
        return torch.stack(indices, dim=1)

    def member_logits(
        self,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return each member's log-odds ``(M, B, L)``; a member gets no gradient from the rows that it leaves out."""
        sums_BH = self._sums(numeric, categorical, sparse, self.tables())
        logits_MBL: Tensor = sums_BH.unflatten(1, (self.config.members, -1)).transpose(0, 1) + self.bias
        if not self.training or dropout_key_B is None or not self.bags.p:
            return logits_MBL
        kept_BM = keep_factors(dropout_key_B, self.bags.unit_keys, self.bags.p, logits_MBL.dtype)
        return _weighted(logits_MBL, kept_BM.T.unsqueeze(2))

    def first_output(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,  # noqa: ARG002 - nothing is dropped
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of a row's terms, the mean over members ``(B, L)``."""
        return self._sums(numeric, categorical, sparse, self.mean_table())

    def _sums(
        self, numeric: Tensor | None, categorical: Tensor | None, sparse: Tensor | None, table_VX: Tensor
    ) -> Tensor:
        """Return the sum of a row's terms ``(B, X)``, given the table."""
        assert (sparse is None) == (self.ids is None), "ids have a term or are not read"
        if self.ids is None:
            return table_sum(self.indices(numeric, categorical), table_VX, self.kernel)
        of_ids_BX: Tensor = self.ids(sparse)
        # If ids are the only features, the table is empty.
        if not self.layout.terms:
            return of_ids_BX
        return table_sum(self.indices(numeric, categorical), table_VX, self.kernel) + of_ids_BX

    @torch.no_grad()
    def for_scoring(self) -> Self:
        """Return a model of one member, the mean of all, whose table is computed in advance."""
        shape = additive_shape(self.config)
        if self.config.members == 1 and shape.form == "tables" and not self.signs:
            return self
        # Curves are monotone by now.
        shape = shape.as_tables().model_copy(update={"monotone": ()})
        model = type(self)(self.config.model_copy(update={"members": 1, "additive": shape})).to(self.bias)
        model.kernel = self.kernel
        model.table.copy_(self.mean_table())
        model.bias.copy_(self.bias)
        model.calibration_scale.copy_(self.calibration_scale)
        model.calibration_shift.copy_(self.calibration_shift)
        return model.eval()

    def mean_table(self) -> Tensor:
        """Return what each code adds to the log-odds: the members' mean, ``(V, L)``."""
        if self.config.members == 1:
            return self.tables()
        mean_VL: Tensor = self.tables().unflatten(1, (self.config.members, -1)).mean(dim=1)
        return mean_VL

    def log_odds_of(self, first_BH: Tensor) -> Tensor:
        """Return the calibrated log-odds ``(B, L)``, given the sum of a row's terms."""
        return self.calibrated(first_BH + self.bias)


class _Weighted(torch.autograd.Function):
    """Leaves values as they are and weights their gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grads[0] * weight, None


def _weighted(values: Tensor, weight: Tensor) -> Tensor:
    weighted: Tensor = _Weighted.apply(values, weight)
    return weighted


def bins_of_rows(shape: AdditiveShape, layout: Layout) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return for each row of the table of a feature the bin that it belongs to in the feature's pairs."""
    bins = np.zeros(sum(term.size for term in layout.mains), np.int32)
    binned = {each.feature: each.cuts for each in shape.binned}
    for term in layout.mains:
        bins[term.rows] = np.searchsorted(binned.get(term.features[0], ()), np.arange(term.size), side="right")
    return bins


def _score_rows(config: ModelConfig, shape: AdditiveShape, layout: Layout) -> Tensor:
    """Return the row of the table of each code of each numeric feature's score, ``(F, 256)``."""
    codes = torch.arange(SCORE_CODES, dtype=torch.int32)
    rows_FC = torch.zeros(config.num_numeric, SCORE_CODES, dtype=torch.int32)
    for term in layout.curved:
        rows_FC[term.features[0]] = term.first + codes
    for term, upper in zip(layout.binary, shape.upper, strict=True):
        side = torch.where(codes >= upper, BINARY_CODES - 1, 1)
        rows_FC[term.features[0]] = term.first + torch.where(codes == 0, 0, side)
    return rows_FC


def _pair_bases(layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return basis functions of the bins of both sides of the pairs ``(P, bins, functions)``, and where cells lie.

    A curve's bins have Gaussians, from the second bin on as the first one stands for missing values; of a category the
    most frequent codes have a function of their own.
    """
    curved = {term.features[0] for term in layout.curved}
    most = max(max(term.shape) for term in layout.pairs)
    sides = [torch.zeros(len(layout.pairs), most, PAIR_FUNCTIONS) for _ in (0, 1)]
    cells = []
    for index, term in enumerate(layout.pairs):
        for side, (feature, size) in enumerate(zip(term.features, term.shape, strict=True)):
            if feature in curved:
                spread = torch.linspace(-1, 1, max(2, size - 1))[: size - 1]
                basis = RadialBasis(num_centers=PAIR_FUNCTIONS, grid_min=-1.0, grid_max=1.0)(spread).detach()
                sides[side][index, 1:size] = basis
            else:
                # The first code of a category stands for unseen values.
                known = min(size - 1, PAIR_FUNCTIONS)
                sides[side][index, 1 : 1 + known] = torch.eye(PAIR_FUNCTIONS)[:known]
        first_I1, second_J = torch.arange(term.shape[0])[:, None], torch.arange(term.shape[1])
        cells.append(((index * most + second_J) * most + first_I1).flatten())
    return sides[0], sides[1], torch.cat(cells)


def _basis(functions: tuple[int, ...]) -> Tensor:
    """Return the basis functions of each code of a score, ``(256, K)``: none for a missing value."""
    scores_C = decode_scores(torch.arange(SCORE_CODES, dtype=torch.uint8)[None])[0]
    low, high = -SCORE_LIMIT, SCORE_LIMIT
    parts = [RadialBasis(num_centers=count, grid_min=low, grid_max=high)(scores_C) for count in functions]
    basis_CK = torch.cat(parts, dim=1).detach()
    basis_CK[0] = 0
    return basis_CK
