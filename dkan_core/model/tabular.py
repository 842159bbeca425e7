"""The model that is trained: an input encoder for prepared rows, then FastKAN.

Shape suffixes: B rows, F numeric features, C coded features, H width of the first layer's output, L labels.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dkan_core.config import TrainConfig
from dkan_core.data.encoding import SCORE_LIMIT, STEPS
from dkan_core.data.manifest import PreparedData
from dkan_core.model.fastkan import FastKAN


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model's architecture; saved as ``config.json``."""

    labels: tuple[str, ...]
    num_numeric: int
    cardinalities: tuple[int, ...]
    """Number of codes of each coded feature."""

    embedded: tuple[int, ...]
    """Which coded features are categories: those are also embedded and go through the basis."""

    embedding_dim: int
    hidden: tuple[int, ...]
    num_centers: int
    grid_min: float
    grid_max: float
    input_norm: str
    dropout: float

    @classmethod
    def for_data(cls, prepared: PreparedData, config: TrainConfig) -> "ModelConfig":
        """Return the architecture for a prepared data set."""
        coded = prepared.preprocessor.coded
        return cls(
            labels=tuple(prepared.labels),
            num_numeric=len(prepared.preprocessor.numeric),
            cardinalities=tuple(feature.cardinality for feature in coded),
            embedded=tuple(index for index, feature in enumerate(coded) if feature.kind == "category"),
            embedding_dim=config.embedding_dim,
            hidden=config.hidden,
            num_centers=config.num_centers,
            grid_min=config.grid_min,
            grid_max=config.grid_max,
            input_norm=config.input_norm,
            dropout=config.dropout,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "ModelConfig":
        """Rebuild an architecture from its plain form."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**values)


def decode_scores(numeric_BF: Tensor) -> Tensor:
    """Turn stored normal scores back into floats on their device, 0 (the median) where missing.

    Shape:
        - Input: ``(B, F)`` uint8, float16 or float32
        - Output: ``(B, F)`` float32

    >>> decode_scores(torch.tensor([[0, 1, 128, 255]], dtype=torch.uint8))
    tensor([[ 0., -3.,  0.,  3.]])
    """
    if numeric_BF.dtype != torch.uint8:
        return numeric_BF.float().nan_to_num(nan=0.0)
    scores_BF = numeric_BF.float().sub_(1).mul_(2 * SCORE_LIMIT / STEPS).sub_(SCORE_LIMIT)
    return scores_BF.masked_fill_(numeric_BF == 0, 0.0)


def _embedding(cardinality: int, dim: int) -> nn.Embedding:
    embedding = nn.Embedding(cardinality, min(dim, (cardinality + 1) // 2))
    nn.init.normal_(embedding.weight, std=0.5)
    return embedding


class InputEncoder(nn.Module):
    """Prepared arrays to the inputs of FastKAN and a shift of its first layer's output.

    Numeric features are decoded and category codes embedded; both go through the basis. Every code has besides a
    vector of its own, added to the first layer's output: an exact-value indicator at one weight an output.

    Shape:
        - Input: ``numeric`` (B, F), ``categorical`` (B, C) int32
        - Output: (B, F + embeddings), (B, H)
    """

    offsets: Tensor

    def __init__(self, config: ModelConfig, first_width: int) -> None:
        super().__init__()
        self.embedded = config.embedded
        embeddings = [_embedding(config.cardinalities[index], config.embedding_dim) for index in config.embedded]
        self.embeddings = nn.ModuleList(embeddings)
        self.width = config.num_numeric + sum(embedding.embedding_dim for embedding in embeddings)
        ends = torch.tensor(config.cardinalities, dtype=torch.long).cumsum(0)
        self.register_buffer("offsets", ends - torch.tensor(config.cardinalities), persistent=False)
        self.indicators = None
        if config.cardinalities:
            self.indicators = nn.EmbeddingBag(sum(config.cardinalities), first_width, mode="sum")
            nn.init.zeros_(self.indicators.weight)

    def forward(self, numeric: Tensor | None, categorical: Tensor | None) -> tuple[Tensor, Tensor | None]:
        inputs = [] if numeric is None else [decode_scores(numeric)]
        if categorical is None or self.indicators is None:
            return torch.cat(inputs, dim=1), None
        codes_BC = categorical.long()
        inputs += [layer(codes_BC[:, index]) for index, layer in zip(self.embedded, self.embeddings, strict=True)]
        return torch.cat(inputs, dim=1), self.indicators(codes_BC + self.offsets)


class TabularFastKAN(nn.Module):
    """Input encoder and FastKAN.

    Shape:
        - Input: ``numeric`` (B, F) and ``categorical`` (B, C) int32; None where there are no such features
        - Output: logits ``(B, L)``
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        widths = [*config.hidden, len(config.labels)]
        self.encoder = InputEncoder(config, widths[0])
        self.network = FastKAN(
            [self.encoder.width, *widths],
            num_centers=config.num_centers,
            grid_min=config.grid_min,
            grid_max=config.grid_max,
            input_norm=config.input_norm,
            dropout=config.dropout,
        )

    def forward(self, numeric: Tensor | None = None, categorical: Tensor | None = None) -> Tensor:
        inputs, shift = self.encoder(numeric, categorical)
        logits: Tensor = self.network(inputs, shift)
        return logits
