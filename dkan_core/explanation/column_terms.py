"""A model cut at the first layer's output, the last place where it is a sum of terms of source columns.

The terms are those of columns and of crosses of columns; only the layers after it let columns interact.

Shape suffixes: N rows, F source columns, I inputs of the first layer, Z numbers of the sum, L labels.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dkan_core.explanation.columns import Column
from dkan_core.model.first_layer_terms import FirstLayerTerms
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.utils.arrays import Array, Arrays


class ColumnTerms:
    """What each column adds to the first layer's output, and the rest of the model as a function of the sum.

    A first layer that normalizes its rows is no sum over columns. The model is then cut before it: the sum holds the
    layer's inputs, followed by what is added to its output.
    """

    def __init__(self, model: TabularFastKAN, columns: Sequence[Column], device: torch.device) -> None:
        # A copy without gradients of its parameters, as gradients are taken by the sum alone.
        self._model = copy.deepcopy(model).requires_grad_(requires_grad=False).eval().to(device)
        self._device = device
        self._columns = len(columns)
        self._owner = {feature: index for index, column in enumerate(columns) for feature in column.indices}
        self._first_layer = FirstLayerTerms(self._model)
        self._inputs = 0 if model.first_layer_is_sum else model.encoder.width
        self.width = self._inputs + model.first_width

    def widest(self, labels: int) -> int:
        """Return the most numbers held at once per row: those of a layer, or of the gradients of so many labels."""
        config = self._model.config
        return max(labels * self.width, config.members * max(config.hidden, default=1))

    @torch.no_grad()
    def terms(self, arrays: Arrays) -> Tensor:
        """Return what each column of each prepared row adds.

        Shape:
            - Output: ``(N, F, Z)``
        """
        rows = len(next(iter(arrays.values())))
        terms_NFZ = torch.zeros(rows, self._columns, self.width, device=self._device)
        for features, outputs, term_NO in self._first_layer.of_rows(arrays, through_basis=not self._inputs):
            added = slice(self._inputs + outputs.start, self._inputs + outputs.stop)
            for feature in features:
                # A cross is divided equally among its columns, as in Shapley's value of a product.
                terms_NFZ[:, self._owner[feature], added] += term_NO / len(features)
        if self._inputs:
            stored = {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
            numeric, categorical, sparse = (stored.get(name) for name in ("numeric", "categorical", "sparse"))
            inputs_NI, _ = self._model.encoder(numeric, categorical, None, sparse)
            for feature, indices in self._first_layer.inputs():
                terms_NFZ[:, self._owner[feature], indices] += inputs_NI[:, indices]
        return terms_NFZ

    @torch.no_grad()
    def of_codes(self, codes_NS: Array) -> Tensor:
        """Return what each code of a column of ids adds.

        Shape:
            - Input: ``(N, S)``
            - Output: ``(N, S, Z)``
        """
        of_first_NSH = self._first_layer.of_ids(torch.from_numpy(codes_NS).to(self._device))
        return functional.pad(of_first_NSH, (self._inputs, 0))

    def finish(self, sum_NZ: Tensor) -> Tensor:
        """Return the calibrated log-odds of rows whose terms have this sum.

        Shape:
            - Output: ``(N, L)``
        """
        layer, first_NH = self._model.first_layer, sum_NZ[:, self._inputs :]
        if layer is not None:
            of_layer = layer(sum_NZ[:, : self._inputs]) if self._inputs else layer.base_linear.bias
            first_NH = first_NH + functional.pad(of_layer, (0, first_NH.shape[1] - of_layer.shape[-1]))
        return self._model.log_odds_of(first_NH)
