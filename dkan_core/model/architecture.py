"""A model's architecture: what ``config.json`` holds."""

import itertools
import json
import math
import reprlib
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.config.schema import field_types
from dkan_core.config.train import MAX_SEED, TrainConfig
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import DataError
from dkan_core.model.additive_shape import AdditiveShape, Blend, Layout, layout_of
from dkan_core.utils.schemas import Schema, read_json

# A function of two values is linear: a basis would spend eight weights on it. Binary columns on the linear path lost
# nothing, and cost a ninth.
MAX_BINARY_KNOTS = 2
# Most codes with weights of their own, by falling frequency: rarer categories share a weight. At 64 outputs and 16
# members, so many codes are 16 MB; a column of 65,536 would make the table larger than the rest of the model, with
# weights that hardly any row trains.
MAX_ONE_HOT_CODES = 4096
# Basis functions of an additive model's curves, coarse and fine ones, as multiples of ``num_centers``.
RESOLUTIONS = (1, 4)
# A group of this many features has at least 2**30 joint codes, just below the following limit.
MAX_GROUP = 30
# Joint codes are int32. As a feature has at least two codes, no group can be longer than ``MAX_GROUP``.
MAX_JOINT_CODES = 2**31 - 1

Index = Annotated[int, Field(ge=0)]
Group = Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_GROUP)]


class SparseGroup(Schema):
    """A column of lists of ids or of bit vectors."""

    codes: Annotated[int, Field(ge=1)]
    """Number of its codes."""

    ones: Annotated[float, Field(ge=0)]
    """Mean number of codes in a row of the train split."""


class NetworkInputs(NamedTuple):
    """Features that a network reads, by how it does: indexes of numeric features, numeric features and coded ones."""

    curved: tuple[int, ...]
    """Through the basis."""

    binary: tuple[int, ...]
    """With one weight for each output of the first layer."""

    embedded: tuple[int, ...]
    """Embedded, then through the basis."""


class ModelConfig(Schema):
    """A model's architecture; saved as ``config.json``."""

    model_config = ConfigDict(populate_by_name=True)

    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Label names, in the order of the outputs."""

    positive: dict[str, str] = Field(default_factory=dict)
    """By label, the value of its column that counts as 1; labels that are not here hold 0 and 1."""

    model: Literal["auto", "fastkan", "additive"]
    """"auto": an ensemble with feature crosses, value one-hots and linear binary columns; "fastkan": plain FastKAN;
    "additive": a curve per column and chosen pairs, without hidden layers."""

    num_numeric: Index
    """Number of numeric features."""

    binary: tuple[Index, ...]
    """Which numeric features hold at most two values: those skip the basis."""

    cardinalities: tuple[Annotated[int, Field(ge=2)], ...]
    """Number of codes of each coded feature."""

    embedded: tuple[Index, ...]
    """Which coded features are categories: those are also embedded and go through the basis."""

    # Files keep the name of the first versions: their models stay readable, and a run writes the same bytes.
    one_hot_groups: Annotated[tuple[Group, ...], Field(alias="indicators")]
    """Groups of coded features whose joint value has weights of its own at the first layer."""

    missing: tuple[Index, ...]
    """Coded features for which only a missing value has weights of its own."""

    sparse: tuple[SparseGroup, ...] = ()
    """Columns of lists of IDs and of bit vectors: each code has weights of its own at the first layer."""

    embedding_dim: int
    members: int
    hidden: tuple[int, ...]
    num_centers: int
    grid_min: float
    grid_max: float
    input_norm: Literal["none", "layer"]
    dropout: float
    binary_dropout: float

    sketch_rank: int = 0
    """Rank of the sketches of the first layer's weights; 0: these are full."""

    sketch_seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Seed of the sketches' random matrices."""

    ignored_features: tuple[Index, ...] = ()
    """Features that the network does not read, coded ones counted behind the numeric ones; the additive model that it
    is blended with does."""

    additive: AdditiveShape | None = None
    """Architecture of an additive model."""

    blended: Blend | None = None
    """The additive model that the network is blended with; None: it scores alone."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.additive is not None) != (self.model == "additive"):
            raise ValueError("additive: must be there for model additive, and for no other")
        # Networks are checked as settings are: a file must not hold what settings may not ask for.
        TrainConfig(
            **{name: getattr(self, name) for name in ModelConfig.model_fields if name in field_types(TrainConfig)}
        )
        # Such a model would give every row the same probability.
        if not self.num_numeric and not self.cardinalities and not self.sparse:
            raise ValueError("num_numeric, cardinalities and sparse: there must be a feature")
        _check_indexes("labels", self.labels)
        _check_indexes("binary", self.binary, self.num_numeric)
        for name in ("embedded", "missing"):
            _check_indexes(name, getattr(self, name), len(self.cardinalities))
        # An additive model would take a term that is there twice for two.
        _check_indexes("indicators", self.one_hot_groups)
        for group in self.one_hot_groups:
            _check_indexes("indicators", group, len(self.cardinalities))
        # Single features are capped, crosses are not: their joint codes are counted before a table is made for them.
        crosses = (group for group in self.one_hot_groups if len(group) > 1)
        if sum(math.prod(self.cardinalities[index] for index in group) for group in crosses) > MAX_JOINT_CODES:
            raise ValueError(f"indicators: must have at most {MAX_JOINT_CODES:,} joint codes")
        self._check_ignored()
        if self.additive is not None:
            self._check_additive(self.additive)
        if self.blended is not None:
            if self.model != "auto":
                raise ValueError(f"blended: must not be there for model {self.model}")
            if self.blended.ids and not self.sparse:
                raise ValueError("blended.ids: there must be a sparse column")
            _ = self.partner  # a second model of the same rows, with checks of its own
        return self

    def _check_ignored(self) -> None:
        _check_indexes("ignored_features", self.ignored_features, self.num_numeric + len(self.cardinalities))
        if len(self.ignored_features) == self.num_numeric + len(self.cardinalities) and not self.sparse:
            raise ValueError("ignored_features: there must be one that the network reads")
        if self.ignored_features and self.model != "auto":
            raise ValueError(f"ignored_features: must be empty for model {self.model}")
        read = {*itertools.chain(self.missing, *self.one_hot_groups)}
        if found := {self.num_numeric + index for index in read} & {*self.ignored_features}:
            raise ValueError(f"ignored_features: feature {min(found)} has weights of its own")

    def _check_additive(self, shape: AdditiveShape) -> None:
        if self.hidden or self.embedded or any(len(group) > 1 for group in self.one_hot_groups):
            raise ValueError("additive: there must be no hidden layer, no embedding and no cross of codes")
        # Only the additive model of a blend has a term for ids.
        if self.sparse and (shape.form != "tables" or self.members > 1):
            raise ValueError("additive: there must be no sparse column")
        if len(shape.upper) != len(self.binary):
            raise ValueError("additive.upper: must have one code for each binary feature")
        _check_indexes("additive.monotone", [feature for feature, _ in shape.monotone], self.num_numeric)
        coded = {self.num_numeric + group[0] for group in self.one_hot_groups}
        odd = {each.feature for each in shape.binned} - coded - {*range(self.num_numeric)}
        if odd:
            raise ValueError(f"additive.binned: {min(odd)} is no feature with a term")

    @property
    def partner(self) -> "ModelConfig | None":
        """Architecture of the additive model that the network is blended with."""
        blend = self.blended
        if blend is None:
            return None
        return blended_config(self, coded=blend.coded, additive=blend.additive, ids=blend.ids)

    @property
    def widths(self) -> list[int]:
        """Outputs of each of a member's layers: hidden units, then labels."""
        return [*self.hidden, len(self.labels)]

    @property
    def inputs(self) -> NetworkInputs:
        """The features that a network reads."""
        ignored, binary = {*self.ignored_features}, {*self.binary}
        numeric = [index for index in range(self.num_numeric) if index not in ignored]
        return NetworkInputs(
            curved=tuple(index for index in numeric if index not in binary),
            binary=tuple(index for index in numeric if index in binary),
            embedded=tuple(index for index in self.embedded if self.num_numeric + index not in ignored),
        )

    @classmethod
    def for_data(
        cls,
        prepared: PreparedData,
        config: ResolvedTrainConfig,
        *,
        one_hot_groups: Sequence[tuple[int, ...]] = (),
        missing: Sequence[int] = (),
        additive: AdditiveShape | None = None,
        sketch_seed: int | None = None,
    ) -> "ModelConfig":
        """Return the architecture for a prepared data set.

        Args:
            prepared: The data set.
            config: Sizes, and whether the model is a plain FastKAN, which has no one-hot weights.
            one_hot_groups: Groups of coded features whose joint value gets weights of its own.
            missing: Coded features for which only a missing value gets weights.
            additive: What additive models alone have.
            sketch_seed: Seed of the model that training starts from. None: the settings' seed.
        """
        plain = config.model == "fastkan"
        return cls(
            labels=tuple(prepared.labels),
            positive=dict(prepared.positive),
            model=config.model,
            **features_of(prepared.preprocessor, config.model),
            one_hot_groups=() if plain else tuple(one_hot_groups),
            missing=() if plain else tuple(missing),
            embedding_dim=config.embedding_dim,
            members=config.members,
            hidden=config.hidden,
            num_centers=config.num_centers,
            grid_min=config.grid_min,
            grid_max=config.grid_max,
            input_norm=config.input_norm,
            dropout=config.dropout,
            binary_dropout=config.binary_dropout,
            sketch_rank=config.sketch_rank,
            sketch_seed=(config.seed if sketch_seed is None else sketch_seed) if config.sketch_rank else 0,
            additive=additive,
        )

    def check_encoding(self, preprocessor: Preprocessor, where: str) -> None:
        """Raise DataError unless the architecture is for rows of this encoding."""
        for name, expected in features_of(preprocessor, self.model).items():
            if (found := getattr(self, name)) != expected:
                shown = f"must be {reprlib.repr(expected)}, got {reprlib.repr(found)}"
                raise DataError(f"{where}: {name}: does not fit preprocessor.json: {shown}")

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        # Keys that a model does not use are left out, so that files of earlier kinds of models keep the same bytes.
        later = ("additive", "blended", "ignored_features", "positive", "sketch_rank", "sketch_seed", "sparse")
        left_out: dict[str, Any] = {name: True for name in later if not getattr(self, name)}
        if self.blended is not None and not self.blended.ids:
            left_out["blended"] = {"ids"}
        return self.model_dump(by_alias=True, exclude=left_out)

    @classmethod
    def from_dict(cls, plain: dict[str, Any], where: str = "architecture") -> "ModelConfig":
        """Rebuild an architecture from its plain form, of tuples or of lists.

        Raises:
            DataError: It is not one; the message names ``where`` and the key.
        """
        return read_json(cls, json.dumps(plain), where)


def _check_indexes(name: str, values: Sequence[Any], end: int | None = None) -> None:
    """Raise ValueError where a value occurs twice, or is no index below ``end``."""
    if len({*values}) < len(values):
        raise ValueError(f"{name}: holds a value twice")
    if end is not None and values and max(values) >= end:
        raise ValueError(f"{name}: must hold indexes below {end}, got {max(values)}")


def features_of(preprocessor: Preprocessor, model: str) -> dict[str, Any]:
    """Return the fields of an architecture that follow from the encoding."""
    binary = [index for index, feature in enumerate(preprocessor.numeric) if len(feature.knots) <= MAX_BINARY_KNOTS]
    categories = [index for index, feature in enumerate(preprocessor.coded) if feature.kind == "category"]
    return {
        "num_numeric": len(preprocessor.numeric),
        "binary": () if model == "fastkan" else tuple(binary),
        "cardinalities": tuple(feature.cardinality for feature in preprocessor.coded),
        "sparse": tuple(SparseGroup(codes=feature.size, ones=feature.ones) for feature in preprocessor.sparse),
        "embedded": () if model == "additive" else tuple(categories),
    }


def ignoring(config: ModelConfig, features: Collection[int]) -> ModelConfig:
    """Return the architecture of a network that ignores features, given that of one which reads all.

    Args:
        config: The architecture.
        features: Indexes, those of coded features counted behind the numeric ones.
    """
    ignored = tuple(sorted(features))
    coded = {index - config.num_numeric for index in ignored}
    groups = tuple(group for group in config.one_hot_groups if not coded & {*group})
    missing = tuple(index for index in config.missing if index not in coded)
    return config.model_copy(update={"ignored_features": ignored, "one_hot_groups": groups, "missing": missing})


def ignored_names(config: ModelConfig, preprocessor: Preprocessor) -> list[str]:
    """Return the names of the features that a network ignores, each once."""
    features = [*preprocessor.numeric, *preprocessor.coded]
    return list(dict.fromkeys(features[index].name for index in config.ignored_features))


def embedding_width(cardinality: int, dim: int) -> int:
    """Return the width of a category's embedding: no more than half its codes, as more could not differ."""
    return min(dim, (cardinality + 1) // 2)


def blended_config(
    config: ModelConfig, *, coded: Sequence[int], additive: AdditiveShape, ids: bool = False
) -> ModelConfig:
    """Return the architecture of an additive model that a network is blended with.

    Args:
        config: Architecture of the network.
        coded: Coded features with a term of their own.
        additive: Its pairs and bins.
        ids: Whether it has a number for each code of the sparse columns.
    """
    changed: dict[str, Any] = {
        "model": "additive",
        "members": 1,
        "hidden": (),
        "embedded": (),
        "one_hot_groups": tuple((index,) for index in coded),
        "missing": (),
        "ignored_features": (),
        "sparse": config.sparse if ids else (),
        "input_norm": "none",
        "dropout": 0.0,
        "sketch_rank": 0,
        "sketch_seed": 0,
        "additive": additive,
        "blended": None,
    }
    return ModelConfig(**{**{name: getattr(config, name) for name in ModelConfig.model_fields}, **changed})


def additive_shape(config: ModelConfig) -> AdditiveShape:
    """Return the part of an architecture that only additive models have."""
    assert config.additive is not None
    return config.additive


def additive_layout(config: ModelConfig) -> Layout:
    """Return where the terms of an additive model lie."""
    coded = [group[0] for group in config.one_hot_groups]
    return layout_of(config.num_numeric, config.binary, config.cardinalities, coded, additive_shape(config))


def curve_functions(config: ModelConfig) -> tuple[int, ...]:
    """Return the number of basis functions of each resolution of an additive model's curves."""
    return tuple(config.num_centers * factor for factor in RESOLUTIONS)


def sparse_rows(config: ModelConfig) -> int:
    """Return the rows of the table of weights of sparse columns: one for no code, and one for each code."""
    return 1 + sum(group.codes for group in config.sparse) if config.sparse else 0
