"""Log-odds of a model for rows with some columns changed, computed from what changes alone.

Shape suffixes: N rows, M changed rows, L labels, H the first layer's outputs over all members.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dkan_core.explanation.columns import Rows, Settings, changed_rows, sparse_codes
from dkan_core.explanation.response import Change, Response, cut, first_rows, grouped, row_count
from dkan_core.model.base import INPUTS, TabularModel
from dkan_core.model.first_layer_terms import Feature, FirstLayerTerms, Stored
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring import probabilities
from dkan_core.scoring.probabilities import CHUNK_OUTPUTS, chunks_of
from dkan_core.utils.arrays import Arrays, Float64

# Larger log-odds are probabilities of one in nine million, for which float32 has no digits left: their differences
# mean nothing, and one such row would outweigh all others in a mean of squares.
LARGEST = 16.0
# First-layer outputs to keep, 256 MB; those of further rows are computed whenever they are needed.
KEPT_OUTPUTS = 1 << 26


class ModelResponse(Response):
    """The log-odds of a model, within ±16.

    If the model's first layer is a sum over columns, only the terms of changed columns and the rest of the network are
    computed: the work does not grow with the number of columns, except for the lookups of a blend's terms.

    Args:
        model: The model in eval mode, on ``device``.
        device: Where to compute.
        labels: Indexes of the labels whose log-odds to return.
        arrays: The rows, as prepared; what a model does not read is left out.
    """

    unclipped_NL: npt.NDArray[np.float32]
    """The log-odds of all labels for the rows as they are, of any size."""

    def __init__(self, model: TabularModel, device: torch.device, labels: Sequence[int], arrays: Arrays) -> None:
        arrays = {name: arrays[name] for name in INPUTS if name in arrays}
        # The fastest form for scoring may hold only the members' mean.
        self._with_members, model = model, model.for_scoring()
        self._model, self._device, self._labels = model, device, list(labels)
        # Rows of which the first layer's outputs are held at once.
        self._batch = max(1, CHUNK_OUTPUTS // model.first_width)
        self._terms: FirstLayerTerms | None = None
        if isinstance(model, TabularFastKAN) and model.first_layer_is_sum:
            self._terms = FirstLayerTerms(model)
        if self._terms is None:
            self.unclipped_NL = probabilities.log_odds(model, arrays, device).cpu().numpy()
        else:
            self.unclipped_NL, self._first_NH = self._score(arrays)
        answered_NL = self._within(torch.from_numpy(self.unclipped_NL))
        super().__init__(lambda rows: self._within(probabilities.log_odds(model, rows, device)), arrays, answered_NL)
        if self._terms is not None:
            self._step = self._batch

    def _within(self, log_odds_ML: Tensor) -> Float64:
        chosen_ML = log_odds_ML[:, self._labels].cpu().numpy().astype(np.float64)
        within: Float64 = chosen_ML.clip(-LARGEST, LARGEST)
        return within

    @torch.inference_mode()
    def _score(self, arrays: Arrays) -> tuple[npt.NDArray[np.float32], Tensor]:
        """Return the log-odds of all rows, and the first layer's output for as many as are kept."""
        scored, kept, room = [], [], max(1, KEPT_OUTPUTS // self._model.first_width)
        for part in chunks_of(row_count(arrays), self._batch):
            first_MH = self._first({name: array[part] for name, array in arrays.items()})
            scored.append(self._model.log_odds_of(first_MH).cpu())
            if part.start < room:
                kept.append(first_MH)
        return torch.cat(scored).numpy(), torch.cat(kept)

    def _first(self, arrays: Arrays) -> Tensor:
        return self._model.first_output(*self._stored(arrays))

    def _stored(self, arrays: Arrays) -> tuple[Tensor | None, ...]:
        """Return the arguments of a model's functions: normal scores, codes, no keys for dropout, codes of ids."""
        stored = {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
        return stored.get("numeric"), stored.get("categorical"), None, stored.get("sparse")

    def sparse_slopes(self, rows: int) -> Float64:
        """Return the mean gradient of the first label's log-odds by whether a row has an id, for each code of ids.

        Args:
            rows: How many of the first rows to take.

        Shape:
            - Output: ``(V,)``
        """
        table_VH = self._id_weights
        with torch.enable_grad():
            first_NH = self._first(first_rows(self.arrays, rows)).detach().requires_grad_()
            odds_N = self._model.log_odds_of(first_NH)[:, self._labels[0]].clamp(-LARGEST, LARGEST)
            (gradient_NH,) = torch.autograd.grad(odds_N.sum(), first_NH)
        slopes_V: Float64 = (table_VH @ gradient_NH.mean(dim=0)).cpu().numpy().astype(np.float64)
        return slopes_V

    @torch.inference_mode()
    def with_less_without(self, codes_V: Rows, rows: int) -> Float64:
        """Return the mean difference of the first label's log-odds between rows with and without an id.

        Args:
            codes_V: The ids' codes.
            rows: How many of the first rows to take.

        Shape:
            - Output: ``(V,)``
        """
        arrays = first_rows(self.arrays, rows)
        first_NH, differences = self._first(arrays), []
        for code in codes_V.tolist():
            has_N = torch.from_numpy((arrays["sparse"] == code).any(axis=1)).to(self._device)
            without_NH = first_NH - has_N.unsqueeze(1) * self._id_weights[code]
            both_NL = self._model.log_odds_of(torch.cat([without_NH + self._id_weights[code], without_NH]))
            odds_N = both_NL[:, self._labels[0]].clamp(-LARGEST, LARGEST)
            differences.append(float(odds_N[: len(first_NH)].mean() - odds_N[len(first_NH) :].mean()))
        return np.array(differences, dtype=np.float64)

    @functools.cached_property
    def _id_weights(self) -> Tensor:
        assert isinstance(self._model, TabularFastKAN), "no other model reads IDs"
        return FirstLayerTerms(self._model).of_ids(slice(None))

    @torch.inference_mode()
    def of_members(self, rows_M: Rows, settings: Settings) -> Float64:
        """Return the first label's log-odds of changed rows, and beside them what each member says, each calibrated."""
        found = []
        for part in chunks_of(len(rows_M), self._batch):
            both_ML = self._mean_and_member_logits(rows_M[part], cut(settings, part))
            found.append(self._model.calibrated(both_ML)[:, :, self._labels[0]].T)
        return torch.cat(found).cpu().numpy().astype(np.float64).clip(-LARGEST, LARGEST)

    def _mean_and_member_logits(self, rows_M: Rows, settings: Settings) -> Tensor:
        """Return the uncalibrated log-odds of changed rows ``(1 + members, M, L)``: the mean, then each member's."""
        if isinstance(self._model, TabularFastKAN):
            mean_ML, members = self._model.mean_and_member_logits(self._changed_first(rows_M, settings))
        else:
            members = self._with_members.member_logits(*self._stored(changed_rows(self.arrays, rows_M, settings)))
            mean_ML = members.mean(dim=0)
        return torch.cat([mean_ML.unsqueeze(0), members])

    def to_changes(self, changes: Iterable[Change]) -> Iterator[Float64]:
        """Yield what ``to_changed`` returns for each of many changes; those of few rows are scored together."""
        for together in grouped(changes, lambda change: len(change[0]), self._batch):
            if self._terms is None or len(together) == 1:
                yield from (self.to_changed(*change) for change in together)
            else:
                yield from self._score_together(together)

    def _answer(self, rows_M: Rows, settings: Settings) -> Float64:
        if self._terms is None:
            return super()._answer(rows_M, settings)
        return self._score_together([(rows_M, settings)])[0]

    @torch.inference_mode()
    def _score_together(self, changes: Sequence[Change]) -> list[Float64]:
        first_MH = torch.cat([self._changed_first(rows_M, settings) for rows_M, settings in changes])
        answered_ML = self._within(self._model.log_odds_of(first_MH))
        return np.split(answered_ML, np.cumsum([len(rows_M) for rows_M, _ in changes])[:-1])

    def _changed_first(self, rows_M: Rows, settings: Settings) -> Tensor:
        """Return the first layer's output for rows with some columns changed."""
        if self._terms is None:
            return self._first(changed_rows(self.arrays, rows_M, settings))
        if rows_M.max(initial=0) < len(self._first_NH):
            first_MH = self._first_NH[torch.from_numpy(rows_M).to(self._device)]
        else:
            first_MH = self._first({name: array[rows_M] for name, array in self.arrays.items()})
        after: dict[Feature, Stored] = {}
        for column, cells in settings:
            if cells.scores_P is not None:
                after["numeric", column.numeric_index] = cells.scores_P
            if cells.codes_P is not None:
                after["categorical", column.code_index] = cells.codes_P
            if cells.sparse_PS is not None:
                before_MS = sparse_codes(column, self.arrays["sparse"][rows_M])
                first_MH = first_MH + self._terms.sum_of_ids(cells.sparse_PS) - self._terms.sum_of_ids(before_MS)

        def stored_of(feature: Feature) -> Stored:
            name, index = feature
            stored_M: Stored = self.arrays[name][rows_M, index]
            return stored_M

        changes = {feature: (stored_of(feature), after_M) for feature, after_M in after.items()}
        difference_MH = self._terms.difference(changes, stored_of)
        if difference_MH is not None:
            first_MH.add_(difference_MH)
        return first_MH
