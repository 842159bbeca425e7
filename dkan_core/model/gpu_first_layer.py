"""A first layer on a GPU: scores in a pass over what is stored of them, codes by tables of what each of them adds.

Shape suffixes: B rows, F numeric features, C coded features, I inputs, O outputs, H outputs over all members.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model.code_sums import CodeSums, EmbeddingInputs
from dkan_core.model.fastkan import FastKANLayer
from dkan_core.model.kernels import byte_layer, radial_linear
from dkan_core.model.kernels.native_input import InputLayout, OneHotGroup
from dkan_core.model.scores import decode_scores

Weights = tuple[Tensor, Tensor]
"""Of basis and SiLU, for some of the inputs."""

MAX_TABLE_CODES = 8192
"""Codes of all embedded columns, at most, whose terms are computed for every code; also as many as a batch has rows."""


class GpuFirstLayer:
    """Computes the output of a first layer without LayerNorm, but for what binary features and ids add.

    Args:
        cardinalities: Number of codes of each coded feature.
        layout: Where the layer's inputs come from.
    """

    def __init__(self, cardinalities: Sequence[int], layout: InputLayout) -> None:
        self._cardinalities, self._layout = cardinalities, layout
        self._codes = sum(column.codes for column in layout.embedded)
        self._sums: dict[tuple[torch.device, bool], CodeSums] = {}
        self._inputs: dict[torch.device, EmbeddingInputs] = {}

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
            embeddings: Of each embedded column.
            one_hot_VH: Weights of the one-hot groups.
        """
        of_scores, of_codes = self._divided(layer)
        terms = [layer.base_linear.bias]
        if stored_BI is not None:
            terms = [_of_scores(layer, stored_BI, of_scores, layer.base_linear.bias)]
        if categorical is not None:
            terms += self._of_codes(layer, categorical, embeddings, one_hot_VH, of_codes)
        return functools.reduce(torch.add, terms)

    def _divided(self, layer: FastKANLayer) -> tuple[Weights, Weights]:
        """Return the weights of scores and of embeddings: in one operation, whose gradient is copied once."""
        spline_OK, base_OI = layer.spline_linear.weight, layer.base_linear.weight
        scores, embedded = len(self._layout.scores), sum(column.width for column in self._layout.embedded)
        if 0 in (scores, embedded):
            return (spline_OK, base_OI), (spline_OK, base_OI)
        centers = len(layer.rbf.grid)
        spline_parts = spline_OK.split((scores * centers, embedded * centers), dim=1)
        of_scores, of_codes = zip(spline_parts, base_OI.split((scores, embedded), dim=1), strict=True)
        return of_scores, of_codes

    def _of_codes(
        self,
        layer: FastKANLayer,
        categorical: Tensor,
        embeddings: Sequence[Tensor],
        one_hot_VH: Tensor | None,
        weights: Weights,
    ) -> list[Tensor]:
        """Return what embeddings and one-hots add, each ``(B, H)``."""
        device, columns = categorical.device, self._layout.embedded
        in_table = 0 < self._codes <= max(MAX_TABLE_CODES, len(categorical))
        terms, tables = [], [] if one_hot_VH is None else [one_hot_VH]
        if in_table:
            if device not in self._inputs:
                self._inputs[device] = EmbeddingInputs(columns, device)
            tables.append(_through_basis(layer, self._inputs[device].lay_out(embeddings), weights))
        elif columns:
            codes = (categorical[:, column.feature] for column in columns)
            embedded_BI = torch.cat([F.embedding(*each) for each in zip(codes, embeddings, strict=True)], dim=1)
            terms.append(_through_basis(layer, embedded_BI, weights))
        if tables:
            terms.append(self._code_sums(device, in_table)(categorical, torch.cat(tables)))
        return terms

    def _code_sums(self, device: torch.device, in_table: bool) -> CodeSums:
        """Return what sums the rows of the one-hot weights and, behind them, what embeddings add."""
        if (device, in_table) not in self._sums:
            groups = [*self._layout.groups]
            first = sum(group.rows for group in groups)
            for column in self._layout.embedded if in_table else ():
                groups.append(OneHotGroup(first, column.codes, 0, [(column.feature, 1)]))
                first += column.codes
            self._sums[device, in_table] = CodeSums(self._cardinalities, groups, device)
        return self._sums[device, in_table]


def _of_scores(layer: FastKANLayer, stored_BI: Tensor, weights: Weights, bias_O: Tensor) -> Tensor:
    """Return what scores add, and the bias ``(B, O)``."""
    if stored_BI.dtype == torch.uint8:
        fused_BO = byte_layer(stored_BI, (*weights, bias_O), layer.rbf.grid, layer.rbf.width, layer.kernel)
        if fused_BO is not None:
            return fused_BO
    return _through_basis(layer, decode_scores(stored_BI), weights) + bias_O


def _through_basis(layer: FastKANLayer, x_BI: Tensor, weights: Weights) -> Tensor:
    """Return what some inputs add by a layer's weights for them ``(B, O)``."""
    spline_OK, base_OI = weights
    spline_BO = radial_linear(x_BI, spline_OK, layer.rbf.grid, layer.rbf.width, layer.kernel)
    return spline_BO + F.linear(F.silu(x_BI), base_OI)
