"""The terms that columns add to the output of a trained model's first layer, for explanations.

Unless the layer normalizes its rows, its output is a sum with one term per score, per embedding and per one-hot group.
If a column changes, only the terms that read it change. ``model.encoder`` computes the sum itself.

Shape suffixes: M rows, P values, H the first layer's outputs over all members.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.model.architecture import SparseGroup
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.decoding import decode_scores
from dkan_core.model.encoder import BINARY_SCALE
from dkan_core.model.kernels import radial_linear, table_sum
from dkan_core.model.tabular import TabularFastKAN

Stored = npt.NDArray[Any]
"""One feature as it is stored, scores or codes; ``(M,)``."""

Feature = tuple[str, int]
"""The array that holds a feature, ``numeric`` or ``categorical``, and its index there; of ``sparse`` the column's."""

StoredOf = Callable[[Feature], Stored]
"""A feature to its scores or codes."""

FeatureChange = tuple[Stored, Stored]
"""One feature before and after it changes."""

Changes = Mapping[Feature, FeatureChange]

# With at least this many rows, tables have an entry for each possible value, without a search for those that occur.
UINT8_VALUES = 256


@dataclass(frozen=True)
class _ChangedTerm:
    """A term of the sum for M rows, before and after they change."""

    of: Callable[[Tensor], Tensor]
    """Stored values ``(P,)`` to the term ``(P, H)``."""

    change: FeatureChange
    count: int
    """Number of values if they are 0, 1, 2 and so on; otherwise 0."""

    def numbered(self) -> tuple[Stored, Stored, Stored]:
        """Return values ``(P,)``, and which of them each row has before and after."""
        before_M, after_M = self.change
        if 0 < self.count <= len(before_M):
            return np.arange(self.count, dtype=before_M.dtype), before_M, after_M
        values_P, indices = np.unique(np.concatenate(self.change), return_inverse=True)
        return values_P, indices[: len(before_M)], indices[len(before_M) :]


class FirstLayerTerms:
    """The terms of a model's first layer; for a blend, those of its additive model follow.

    Args:
        model: The model. Unless ``first_layer_is_sum`` holds, only the terms of binary features and one-hots add up.
    """

    def __init__(self, model: TabularFastKAN) -> None:
        encoder = model.encoder
        self._encoder, self._layer = encoder, model.first_layer
        self._blend = model if isinstance(model, BlendedFastKAN) else None
        self._curved = {feature: index for index, feature in enumerate(encoder.curved.tolist())}
        self._binary = {feature: index for index, feature in enumerate(encoder.binary.tolist())}
        self._embeddings = dict(zip(encoder.embedded, _embeddings(encoder.embeddings), strict=True))
        widths = [embedding.embedding_dim for embedding in self._embeddings.values()]
        starts = itertools.accumulate(widths, initial=len(self._curved))
        self._starts = dict(zip(self._embeddings, starts, strict=False))
        self._one_hots = [] if encoder.indicators is None else encoder.indicators.groups()

    def difference(self, changes: Changes, stored_of: StoredOf) -> Tensor | None:
        """Return what is added to the first layer's output when some features change.

        Args:
            changes: These features.
            stored_of: What is stored of any feature before the change.

        Shape:
            - Output: ``(M, H)``; None where no term reads these features
        """
        network_MH = self._network_difference(changes, stored_of)
        additive_ML = None if self._blend is None else self._additive_difference(self._blend, changes, stored_of)
        if network_MH is None or additive_ML is None:
            return additive_ML if network_MH is None else self._padded(network_MH)
        return torch.cat([network_MH, additive_ML], dim=1)

    def _network_difference(self, changes: Changes, stored_of: StoredOf) -> Tensor | None:
        tables: list[Tensor] = []
        indices: list[Stored] = []
        start = 0
        for term in self._terms(changes, stored_of):
            values_P, before_M, after_M = term.numbered()
            table_PH = term.of(torch.from_numpy(values_P).to(self._encoder.curved.device))
            tables += [table_PH, -table_PH]
            indices += [start + after_M.astype(np.int32), start + len(values_P) + before_M.astype(np.int32)]
            start += 2 * len(values_P)
        if not tables:
            return None
        indices_MT = torch.from_numpy(np.stack(indices, axis=1)).to(self._encoder.curved.device)
        return table_sum(indices_MT, torch.cat(tables))

    def _additive_difference(self, blend: BlendedFastKAN, changes: Changes, stored_of: StoredOf) -> Tensor | None:
        """Return what is added to a blend's additive model ``(M, L)``; None where it reads none of these features."""
        slots = [slot for slot, feature in enumerate(self._additive_features) if feature in changes]
        if not slots:
            return None

        def sums(stored_of: StoredOf) -> Tensor:
            indices_MK = blend.additive.indices_reading(
                slots, lambda slot: torch.from_numpy(stored_of(self._additive_features[slot])).to(blend.bias.device)
            )
            return table_sum(indices_MK, blend.additive.mean_table(), blend.additive.kernel)

        return sums(_after(changes, stored_of)) - sums(stored_of)

    @functools.cached_property
    def _additive_features(self) -> list[Feature]:
        """The features of a blend's additive model, by their indices in ``index_features``."""
        assert self._blend is not None
        return [_feature(self._blend, each) for each, *others in self._blend.additive.index_features if not others]

    def _padded(self, term_MH: Tensor) -> Tensor:
        """Return a term of the network as one of all outputs."""
        return term_MH if self._blend is None else F.pad(term_MH, (0, self._blend.additive.first_width))

    def of_rows(
        self, arrays: Mapping[str, Stored], *, through_basis: bool = True
    ) -> Iterator[tuple[list[Feature], slice, Tensor]]:
        """Yield each term with the features that it reads and the outputs that it is added to.

        Args:
            arrays: Prepared rows.
            through_basis: Whether to yield the terms of scores and embeddings, too, or only of what skips the basis.

        Shape:
            - arrays: ``numeric`` (M, features), ``categorical`` (M, features), ``sparse`` (M, S)
            - Output: each term ``(M, outputs)``
        """
        for features, term_MH in self._of_network(arrays, through_basis):
            yield features, slice(0, term_MH.shape[1]), term_MH
        if self._blend is not None:
            yield from _of_additive(self._blend, arrays)

    def _of_network(self, arrays: Mapping[str, Stored], through_basis: bool) -> Iterator[tuple[list[Feature], Tensor]]:
        """Yield the terms of the network's outputs alone."""
        device = self._encoder.curved.device

        def stored(name: str, feature: int) -> Tensor:
            return torch.from_numpy(arrays[name][:, feature]).to(device)

        for feature in self._binary:
            yield [("numeric", feature)], self._binary_term(feature, stored("numeric", feature))
        for feature in self._curved if through_basis else ():
            yield [("numeric", feature)], self._curved_term(feature, stored("numeric", feature))
        for feature in self._embeddings if through_basis else ():
            yield [("categorical", feature)], self._embedded_term(feature, stored("categorical", feature))
        for group in self._one_hots:
            indices_M = group.indices(lambda feature: arrays["categorical"][:, feature])
            term_MH = self._one_hot_term(torch.from_numpy(indices_M).to(device))
            yield [("categorical", feature) for feature, _ in group.columns], term_MH
        for feature, own_MS in _own_codes(self._encoder.sparse_groups, arrays):
            assert self._encoder.sparse is not None
            yield [feature], self._encoder.sparse(torch.from_numpy(own_MS).to(device))

    def sum_of_ids(self, codes_MS: Stored) -> Tensor:
        """Return what codes of ids add: the sum of their vectors, for each row.

        Shape:
            - Input: ``(M, S)``, 0 where there is none
            - Output: ``(M, H)``
        """
        assert self._encoder.sparse is not None
        codes = torch.from_numpy(codes_MS).to(self._encoder.curved.device)
        network_MH: Tensor = self._encoder.sparse(codes)
        if self._blend is None or self._blend.additive.ids is None:
            return self._padded(network_MH)
        return torch.cat([network_MH, self._blend.additive.ids(codes)], dim=1)

    def of_ids(self, codes: Tensor | slice) -> Tensor:
        """Return what codes of ids add, each by itself: ``(..., H)``."""
        assert self._encoder.sparse is not None
        network = self._encoder.sparse.weight.detach()[codes]
        if self._blend is None or self._blend.additive.ids is None:
            return self._padded(network)
        return torch.cat([network, self._blend.additive.ids.weight.detach()[codes]], dim=-1)

    def inputs(self) -> Iterator[tuple[Feature, slice]]:
        """Yield each feature that goes through the basis, with its indices among the layer's inputs."""
        for feature, index in self._curved.items():
            yield ("numeric", feature), slice(index, index + 1)
        for feature, start in self._starts.items():
            yield ("categorical", feature), slice(start, start + self._embeddings[feature].embedding_dim)

    def _terms(self, changes: Changes, stored_of: StoredOf) -> Iterator[_ChangedTerm]:
        for (name, feature), change in changes.items():
            if name == "numeric":
                # A network may ignore the feature.
                of_score = self._binary_term if feature in self._binary else self._curved_term
                if feature in self._binary or feature in self._curved:
                    count = UINT8_VALUES if change[0].dtype == np.uint8 else 0
                    yield _ChangedTerm(functools.partial(of_score, feature), change, count)
            elif feature in self._embeddings:
                of_code = functools.partial(self._embedded_term, feature)
                yield _ChangedTerm(of_code, change, self._encoder.cardinalities[feature])
        for group in self._one_hots:
            if any(("categorical", feature) in changes for feature, _ in group.columns):
                before, after = _codes_of(stored_of), _codes_of(_after(changes, stored_of))
                yield _ChangedTerm(self._one_hot_term, (group.indices(before), group.indices(after)), 0)

    def _binary_term(self, feature: int, stored_P: Tensor) -> Tensor:
        assert self._encoder.binary_linear is not None
        weight_H = self._encoder.binary_linear.weight[:, self._binary[feature]]
        return BINARY_SCALE * decode_scores(stored_P.unsqueeze(1)) * weight_H

    def _curved_term(self, feature: int, stored_P: Tensor) -> Tensor:
        return self._layer_term(decode_scores(stored_P.unsqueeze(1)), self._curved[feature])

    def _embedded_term(self, feature: int, codes_P: Tensor) -> Tensor:
        return self._layer_term(self._embeddings[feature](codes_P), self._starts[feature])

    def _layer_term(self, x_PI: Tensor, start: int) -> Tensor:
        """Return the term of the layer's inputs from ``start`` on."""
        layer = self._layer
        assert layer is not None
        stop, centers = start + x_PI.shape[1], len(layer.rbf.grid)
        spline_HK = layer.spline_linear.weight[:, start * centers : stop * centers]
        spline_PH = radial_linear(x_PI, spline_HK, layer.rbf.grid, layer.rbf.width, layer.kernel)
        return spline_PH + F.silu(x_PI) @ layer.base_linear.weight[:, start:stop].T

    def _one_hot_term(self, indices_P: Tensor) -> Tensor:
        assert self._encoder.indicators is not None
        return self._encoder.indicators.weight[indices_P]


def _of_additive(blend: BlendedFastKAN, arrays: Mapping[str, Stored]) -> Iterator[tuple[list[Feature], slice, Tensor]]:
    """Yield the terms of a blend's additive model, whose outputs come behind those of the network."""
    device = blend.bias.device
    outputs = slice(blend.network_width, blend.first_width)
    if blend.additive.ids is not None:
        for feature, own_MS in _own_codes(blend.config.sparse, arrays):
            yield [feature], outputs, blend.additive.ids(torch.from_numpy(own_MS).to(device))
    if not blend.additive.layout.terms:
        return
    stored = {name: torch.from_numpy(arrays[name]).to(device) for name in ("numeric", "categorical") if name in arrays}
    indices_MT = blend.additive.indices(stored.get("numeric"), stored.get("categorical")).long()
    table_VL = blend.additive.mean_table()
    for features, indices_M in zip(blend.additive.index_features, indices_MT.T, strict=True):
        yield [_feature(blend, each) for each in features], outputs, table_VL[indices_M]


def _own_codes(
    groups: Sequence[SparseGroup], arrays: Mapping[str, Stored]
) -> Iterator[tuple[Feature, npt.NDArray[np.int32]]]:
    """Yield each column of ids with its codes in each row ``(M, S)``, 0 in the place of other columns' codes."""
    stop = 1
    for index, group in enumerate(groups):
        start, stop = stop, stop + group.codes
        codes_MS = arrays["sparse"]
        yield ("sparse", index), np.where((codes_MS >= start) & (codes_MS < stop), codes_MS, codes_MS.dtype.type(0))


def _feature(blend: BlendedFastKAN, index: int) -> Feature:
    """Return the feature that an additive model counts behind the numeric ones."""
    numeric = blend.config.num_numeric
    return ("numeric", index) if index < numeric else ("categorical", index - numeric)


def _embeddings(modules: nn.ModuleList) -> list[nn.Embedding]:
    return [module for module in modules if isinstance(module, nn.Embedding)]


def _codes_of(stored_of: StoredOf) -> Callable[[int], Stored]:
    return lambda feature: stored_of(("categorical", feature))


def _after(changes: Changes, stored_of: StoredOf) -> StoredOf:
    """Return what is stored of any feature after the change."""
    return lambda feature: changes[feature][1] if feature in changes else stored_of(feature)
