"""How prepared rows enter a network: scores and embeddings go through the basis, binary values and one-hots past it.

Shape suffixes: B rows, F numeric features, C coded features, T one-hot groups, H the first layer's outputs over all
members.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dkan_core.data.encoding.preprocessor import FIRST_CODE
from dkan_core.model.architecture import MAX_ONE_HOT_CODES, ModelConfig, embedding_width, sparse_rows
from dkan_core.model.code_sums import TableIndices
from dkan_core.model.decoding import decode_scores
from dkan_core.model.dropout import RowDropout
from dkan_core.model.fastkan import FastKANLayer
from dkan_core.model.gpu_first_layer import GpuFirstLayer
from dkan_core.model.kernels import KernelModule, can_compute_input_layer, table_sum
from dkan_core.model.kernels.native_input import EmbeddedColumn, InputLayout, InputWeights, OneHotGroup, input_layer
from dkan_core.model.sparse_weights import SparseWeights

# Scale of binary inputs: larger, as each has one weight where a curved input has nine that learn together.
BINARY_SCALE = 3.0
# Standard deviation of embeddings at the start: they lie within the grid of the basis (-2 to 2), where torch's own, 1,
# puts every twentieth value outside.
EMBEDDING_STD = 0.5


def stored_scores(numeric_BF: Tensor | None) -> Tensor | None:
    """Return scores as a first layer takes them: bytes as they are stored, others decoded."""
    return numeric_BF if numeric_BF is None or numeric_BF.dtype == torch.uint8 else decode_scores(numeric_BF)


class OneHotWeights(KernelModule):
    """A vector for every joint value of each group of coded features, summed over the groups.

    Args:
        cardinalities: Number of codes of each coded feature; by itself a feature keeps its ``MAX_ONE_HOT_CODES``
            most frequent ones, and the others count as unseen.
        groups: Indexes of coded features.
        missing: Coded features for which only a missing value counts.
        width: Numbers of a vector, 0 at the start.

    Shape:
        - Input: ``(B, C)`` int32
        - Output: ``(B, width)``

    >>> OneHotWeights((3, 4), [(0,), (0, 1)], [1], 2).weight.shape
    torch.Size([17, 2])
    """

    def __init__(
        self, cardinalities: Sequence[int], groups: Sequence[tuple[int, ...]], missing: Sequence[int], width: int
    ) -> None:
        super().__init__()
        alone = [group[0] for group in groups if len(group) == 1]
        self.features = [*alone, *missing]
        self.caps = [min(cardinalities[index], MAX_ONE_HOT_CODES) for index in alone] + [FIRST_CODE] * len(missing)
        crosses = [group for group in groups if len(group) > 1]
        self.crosses = [_strides(group, cardinalities) for group in crosses]
        self.sizes = self.caps + [math.prod(cardinalities[index] for index in group) for group in crosses]
        self.indices = TableIndices(self.groups())
        # Zero at the start, so that a value that hardly any row has adds no noise; the network's own weights break the
        # symmetry.
        self.weight = nn.Parameter(torch.zeros(sum(self.sizes), width))

    def forward(self, codes_BC: Tensor) -> Tensor:
        return table_sum(self.indices(codes_BC), self.weight, self.kernel)

    def groups(self) -> list[OneHotGroup]:
        """Return where the groups are in the table, in its order."""
        columns = [[(feature, 1)] for feature in self.features] + self.crosses
        caps = self.caps + [0] * len(self.crosses)
        first_rows = itertools.accumulate(self.sizes, initial=0)
        return [OneHotGroup(*each) for each in zip(first_rows, self.sizes, caps, columns, strict=False)]


def _strides(group: tuple[int, ...], cardinalities: Sequence[int]) -> list[tuple[int, int]]:
    """Return each column of a group, and the factor of its code in the group's joint code.

    >>> _strides((0, 2, 1), [9, 3, 5])
    [(0, 15), (2, 3), (1, 1)]
    """
    sizes = [cardinalities[index] for index in group]
    return [(index, math.prod(sizes[after:])) for after, index in enumerate(group, 1)]


def _embedding(cardinality: int, dim: int) -> nn.Embedding:
    embedding = nn.Embedding(cardinality, embedding_width(cardinality, dim))
    nn.init.normal_(embedding.weight, std=EMBEDDING_STD)
    return embedding


class InputEncoder(nn.Module):
    """Prepared arrays to the inputs of FastKAN and a shift of its first layer's output.

    Numeric features are decoded and category codes embedded; both go through the basis. Binary features and the
    chosen one-hots are added to the first layer's output, at one weight an output each.

    Shape:
        - Input: ``numeric`` (B, F), ``categorical`` (B, C) int32; while training maybe keys (B,) that decide what is
          dropped (``RowDropout``); ``sparse`` (B, S) int32
        - Output: (B, inputs), (B, H)
    """

    curved: Tensor
    binary: Tensor
    byte_scores: Tensor
    layout: Tensor

    def __init__(self, config: ModelConfig, first_width: int) -> None:
        super().__init__()
        curved, binary, embedded = config.inputs
        self.cardinalities, self.embedded = config.cardinalities, embedded
        self.binary_dropout = RowDropout(len(binary), config.binary_dropout, layer=0)
        embeddings = [_embedding(config.cardinalities[index], config.embedding_dim) for index in embedded]
        self.embeddings = nn.ModuleList(embeddings)
        self.register_buffer("curved", torch.tensor(curved, dtype=torch.long), persistent=False)
        self.register_buffer("binary", torch.tensor(binary, dtype=torch.long), persistent=False)
        self.all_are_curved = len(curved) == config.num_numeric
        self.width = len(curved) + sum(embedding.embedding_dim for embedding in embeddings)
        self.binary_linear = nn.Linear(len(binary), first_width, bias=False) if binary else None
        # The name is part of the tensors' names in model files.
        self.indicators = None
        if config.one_hot_groups or config.missing:
            self.indicators = OneHotWeights(config.cardinalities, config.one_hot_groups, config.missing, first_width)
        self.sparse_groups = config.sparse
        self.sparse = SparseWeights(sparse_rows(config), first_width) if config.sparse else None
        self.register_buffer("byte_scores", decode_scores(torch.arange(256).byte()[None])[0], persistent=False)
        layout = InputLayout(curved, self._columns, [] if self.indicators is None else self.indicators.groups())
        self.register_buffer("layout", layout.to_tensor(), persistent=False)
        self._on_gpu = GpuFirstLayer(config.cardinalities, layout)

    def code_tables(self) -> dict[str, list[int]]:
        """Return the parameters whose rows stand for codes, and the sizes of the features or groups they hold."""
        tables = {f"embeddings.{index}.weight": [self.cardinalities[i]] for index, i in enumerate(self.embedded)}
        if self.indicators is not None:
            tables["indicators.weight"] = self.indicators.sizes
        if self.sparse_groups:
            # The first column includes the vector for no code.
            first, *others = (group.codes for group in self.sparse_groups)
            tables["sparse.weight"] = [1 + first, *others]
        return tables

    def forward(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> tuple[Tensor | None, list[Tensor]]:
        inputs = []
        if numeric is not None:
            scores_BF = decode_scores(numeric)
            inputs.append(self._curved_of(scores_BF))
        inputs += [self._embed(index, categorical) for index in range(len(self.embedded))]
        shifts = self._shifts(numeric, categorical, dropout_key_B, sparse)
        return torch.cat(inputs, dim=1) if inputs else None, shifts

    def first_layer(
        self,
        layer: FastKANLayer,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor | None:
        """Return the output of a first layer and all shifts, where it is computed from the prepared arrays themselves.

        Args:
            layer: The layer.
            numeric: ``(B, F)``; None where there are no numeric features.
            categorical: ``(B, C)`` int32; None where there are no coded features.
            dropout_key_B: Decides in training mode what is dropped.
            sparse: ``(B, S)`` int32; None where there are no sparse columns.

        Shape:
            - Output: ``(B, H)``; None where the layer has to be computed in parts
        """
        if layer.layernorm is not None:
            return None
        if layer.base_linear.bias.is_cuda and layer.kernel == "auto":
            return self.first_layer_on_gpu(layer, numeric, categorical, dropout_key_B, sparse)
        if not can_compute_input_layer(layer.base_linear.bias, layer.kernel):
            return None
        grid = (layer.rbf.grid, layer.rbf.width)
        scores_BF, weights = stored_scores(numeric), self.input_weights(layer)
        first_BH = input_layer(scores_BF, self.byte_scores, categorical, weights, grid, self.layout)
        if self.sparse is not None:
            first_BH = first_BH + self.sparse(sparse)
        binary_BF = self.binary_inputs(numeric, dropout_key_B)
        return first_BH if self.binary_linear is None or binary_BF is None else first_BH + self.binary_linear(binary_BF)

    def first_layer_on_gpu(
        self,
        layer: FastKANLayer,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return the output of a first layer that has no LayerNorm, and all shifts; see ``first_layer``."""
        stored_BI = None if numeric is None or len(self.curved) == 0 else self._curved_of(numeric)
        one_hot_VH = None if self.indicators is None else self.indicators.weight
        first_BH = self._on_gpu(layer, stored_BI, categorical, self._tables, one_hot_VH)
        return functools.reduce(torch.add, self._shifts(numeric, None, dropout_key_B, sparse), first_BH)

    def input_weights(self, layer: FastKANLayer) -> InputWeights:
        """Return the weights of a first layer and of this encoder, except those of binary features."""
        one_hot_VH = None if self.indicators is None else self.indicators.weight
        base = layer.base_linear
        return InputWeights(layer.spline_linear.weight, base.weight, base.bias, one_hot_VH, self._tables)

    def binary_inputs(self, numeric: Tensor | None, dropout_key_B: Tensor | None) -> Tensor | None:
        """Return the input of ``binary_linear``; None if there are no binary features."""
        if self.binary_linear is None or numeric is None:
            return None
        kept_BF: Tensor = self.binary_dropout(decode_scores(numeric[:, self.binary]), dropout_key_B)
        return BINARY_SCALE * kept_BF

    @property
    def _tables(self) -> list[Tensor]:
        return [layer.weight for layer in self.embeddings if isinstance(layer, nn.Embedding)]

    @property
    def _columns(self) -> list[EmbeddedColumn]:
        return [EmbeddedColumn(index, *table.shape) for index, table in zip(self.embedded, self._tables, strict=True)]

    def _curved_of(self, numeric: Tensor) -> Tensor:
        return numeric if self.all_are_curved else numeric.index_select(1, self.curved)

    def _embed(self, index: int, categorical: Tensor | None) -> Tensor:
        assert categorical is not None
        embedded: Tensor = self.embeddings[index](categorical[:, self.embedded[index]])
        return embedded

    def _shifts(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None,
        sparse: Tensor | None,
    ) -> list[Tensor]:
        """Return what is added to the first layer's output."""
        shifts = []
        binary_BF = self.binary_inputs(numeric, dropout_key_B)
        if self.binary_linear is not None and binary_BF is not None:
            shifts.append(self.binary_linear(binary_BF))
        if categorical is not None and self.indicators is not None:
            shifts.append(self.indicators(categorical))
        if self.sparse is not None:
            shifts.append(self.sparse(sparse))
        return shifts
