"""A first layer on a GPU: scores in a pass over what is stored of them, codes by tables of what each of them adds.

Shape suffixes: B rows, C coded features, V rows of a table, I inputs, O outputs, H outputs over all members.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model.code_sums import CodeSums, EmbeddingInputs
from dkan_core.model.decoding import decode_scores
from dkan_core.model.fastkan import FastKANLayer
from dkan_core.model.kernels import byte_layer, radial_linear
from dkan_core.model.kernels.native_input import InputLayout, OneHotGroup

Weights = tuple[Tensor, Tensor]
"""Weights of basis and SiLU, for some of the inputs."""

TABLE_NUMBERS = 1 << 15
"""Most codes times inputs of all embedded columns, for each of them: with fewer, it takes less time to compute the term
of every code than to gather embeddings, and to scatter their gradients, column by column. (On an H100, 0.1 ms for
205,000 numbers and 256 outputs, and 0.04 ms for each column.)"""

MAX_COPIED_ROWS = 1 << 16
"""Most rows of one-hot weights that are copied into one table with the terms of embeddings."""

ABSENT, ABSENT_WIDTHS = -1e4, 20
"""An input so far below 0, and so many widths below all centers, has a basis, a SiLU and derivatives of exactly 0."""


class GpuFirstLayer:
    """Computes the output of a first layer without LayerNorm, except for the terms of binary features and ids.

    Args:
        cardinalities: Number of codes of each coded feature.
        layout: Where the layer's inputs come from.
    """

    def __init__(self, cardinalities: Sequence[int], layout: InputLayout) -> None:
        self._cardinalities, self._layout = cardinalities, layout
        self._codes = sum(column.codes for column in layout.embedded)
        self._width = sum(column.width for column in layout.embedded)
        self._made: dict[tuple[torch.device, str], Any] = {}
        """Constants on the device."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what lies on a device: a copy, or a process that reads a pickle, may use another."""
        return {**self.__dict__, "_made": {}}

    def __call__(
        self,
        layer: FastKANLayer,
        stored_BI: Tensor | None,
        categorical: Tensor | None,
        embeddings: Sequence[Tensor],
        one_hot_VH: Tensor | None,
    ) -> Tensor:
        """Return the output ``(B, H)``.

        Args:
            layer: The layer.
            stored_BI: Its scores as they are stored; None where it has none.
            categorical: ``(B, C)`` int32; None where there are no coded features.
            embeddings: Embeddings of each embedded column.
            one_hot_VH: Weights of the one-hot groups.
        """
        of_scores, of_codes = self._divided(layer)
        terms = [layer.base_linear.bias]
        if stored_BI is not None:
            terms = [_of_scores(layer, stored_BI, of_scores)]
        if categorical is not None:
            terms += self._of_codes(layer, categorical, embeddings, one_hot_VH, of_codes)
        return functools.reduce(torch.add, terms)

    def _divided(self, layer: FastKANLayer) -> tuple[Weights, Weights]:
        """Return the weights of scores and of embeddings, split by one operation, whose gradient is copied once."""
        spline_OK, base_OI = layer.spline_linear.weight, layer.base_linear.weight
        scores = len(self._layout.scores)
        if 0 in (scores, self._width):
            return (spline_OK, base_OI), (spline_OK, base_OI)
        centers = len(layer.rbf.grid)
        spline_parts = spline_OK.split((scores * centers, self._width * centers), dim=1)
        of_scores, of_codes = zip(spline_parts, base_OI.split((scores, self._width), dim=1), strict=True)
        return of_scores, of_codes

    def _of_codes(
        self,
        layer: FastKANLayer,
        categorical: Tensor,
        embeddings: Sequence[Tensor],
        one_hot_VH: Tensor | None,
        weights: Weights,
    ) -> list[Tensor]:
        """Return the terms of embeddings and one-hots, each ``(B, H)``."""
        terms, embedded_VH = [], None
        if self._takes_table(len(categorical)):
            absent = min(ABSENT, layer.rbf.grid_min - ABSENT_WIDTHS * layer.rbf.width)
            inputs_VI = self._on(categorical.device, "inputs").lay_out(embeddings, absent)
            embedded_VH = _through_basis(layer, inputs_VI, weights)
        elif self._codes:
            codes = (categorical[:, column.feature] for column in self._layout.embedded)
            embedded_BI = torch.cat([F.embedding(*each) for each in zip(codes, embeddings, strict=True)], dim=1)
            terms.append(_through_basis(layer, embedded_BI, weights))
        tables = {"one-hots": one_hot_VH, "embeddings": embedded_VH}
        if one_hot_VH is not None and embedded_VH is not None and len(one_hot_VH) <= MAX_COPIED_ROWS:
            tables = {"both": torch.cat([one_hot_VH, embedded_VH])}
        for name, table_VH in tables.items():
            if table_VH is not None:
                terms.append(self._on(categorical.device, name)(categorical, table_VH))
        return terms

    def _takes_table(self, rows: int) -> bool:
        """Return whether the terms of embeddings are computed per code, and not per row."""
        if self._codes * self._width <= TABLE_NUMBERS * len(self._layout.embedded):
            return self._codes > 0
        # Only in training: a row's score does not depend on how many rows are scored with it.
        return torch.is_grad_enabled() and self._codes <= rows

    def _on(self, device: torch.device, name: str) -> Any:
        """Return constants, which are made when they are first used on a device."""
        key = device, name
        made = self._made
        if key not in made:
            # The model may have been on another device. The dictionary is replaced, as another thread may be reading
            # it.
            made = {known: constants for known, constants in made.items() if known[0] == device}
            # Scoring may create these in inference mode, whose tensors training could not differentiate.
            with torch.inference_mode(False):
                made[key] = self._make(device, name)
            self._made = made
        return made[key]

    def _make(self, device: torch.device, name: str) -> EmbeddingInputs | CodeSums:
        if name == "inputs":
            return EmbeddingInputs(self._layout.embedded, device)
        groups = [*self._layout.groups] if name != "embeddings" else []
        first = sum(group.rows for group in groups)
        for column in self._layout.embedded if name != "one-hots" else ():
            groups.append(OneHotGroup(first, column.codes, 0, [(column.feature, 1)]))
            first += column.codes
        return CodeSums(self._cardinalities, groups, device)


def _of_scores(layer: FastKANLayer, stored_BI: Tensor, weights: Weights) -> Tensor:
    """Return the sum of the terms of scores, and the bias ``(B, O)``."""
    bias_O = layer.base_linear.bias
    if stored_BI.dtype == torch.uint8:
        fused_BO = byte_layer(stored_BI, (*weights, bias_O), layer.rbf.grid, layer.rbf.width, layer.kernel)
        if fused_BO is not None:
            return fused_BO
    return _through_basis(layer, decode_scores(stored_BI), weights) + bias_O


def _through_basis(layer: FastKANLayer, x_BI: Tensor, weights: Weights) -> Tensor:
    """Return the sum of the terms of some inputs, given a layer's weights for them ``(B, O)``."""
    spline_OK, base_OI = weights
    spline_BO = radial_linear(x_BI, spline_OK, layer.rbf.grid, layer.rbf.width, layer.kernel)
    return spline_BO + F.linear(F.silu(x_BI), base_OI)
