"""Transfers weights to a model that has more columns or labels: each number goes where it has the same meaning.

The first layer sums over its inputs, so a new input with weights of 0 does not change the answers for known labels
(function-preserving, as in Net2Net: Chen et al. 2016, arXiv:1511.05641), and yet learns from the first step on.
"""

import itertools
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.encoding.extending import features_by_key
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import PreparedData
from dkan_core.model.architecture import ModelConfig, embedding_width, ignoring
from dkan_core.model.random_state import random_state
from dkan_core.model.tabular import TabularFastKAN

Keys = Sequence[Hashable]
"""The meaning of each number along an axis of a tensor."""

SPARSE_WEIGHT = "encoder.sparse.weight"

Axes = tuple[Keys | None, ...]
"""The axes of a tensor; None for an axis with the same meaning in both models."""


def widened_architecture(
    known: ModelConfig,
    encoding: Preprocessor,
    chosen: ModelConfig,
    prepared: PreparedData,
    config: ResolvedTrainConfig,
) -> ModelConfig:
    """Return a model's architecture extended for the data: value weights and crosses of columns that are new.

    Args:
        known: The model's architecture.
        encoding: The encoding that the model knows.
        chosen: The architecture that would be chosen for the data.
        prepared: The data.
        config: Resolved settings.
    """
    before, after = _coded_keys(encoding, encoding), _coded_keys(prepared.preprocessor, encoding)
    indices = {key: after.index(key) for key in before if key in after}
    known_groups = [[before[index] for index in group] for group in known.one_hot_groups]
    groups = [tuple(indices[key] for key in group) for group in known_groups if {*group} <= {*indices}]
    missing = [indices[before[index]] for index in known.missing if before[index] in indices]
    is_new = [key not in indices for key in after]
    groups += [group for group in chosen.one_hot_groups if any(is_new[index] for index in group)]
    missing += [index for index in chosen.missing if is_new[index]]
    return ModelConfig.for_data(prepared, config, one_hot_groups=groups, missing=missing)


def reading_all(model: TabularFastKAN, encoding: Preprocessor) -> TabularFastKAN:
    """Return a model with the same answers that also reads columns that its network ignores, and learns from them.

    A column that is useless for the labels and rows so far may help with others.
    """
    if not model.config.ignored_features:
        return model
    config = ignoring(model.config, ())
    coded = [index - config.num_numeric for index in model.config.ignored_features if index >= config.num_numeric]
    config = config.model_copy(update={"missing": (*config.missing, *coded)})
    # The ignored columns' embeddings may start at random, as they feed weights of 0.
    with random_state(0):
        whole = TabularFastKAN(config)
    whole.load_state_dict(transferred_state(model, whole, encoding, encoding))
    return whole.eval()


def transferred_state(
    old: TabularFastKAN, new: TabularFastKAN, old_encoding: Preprocessor, new_encoding: Preprocessor
) -> dict[str, Tensor]:
    """Return the new model's tensors, with the old one's numbers where column, value or label is the same.

    Args:
        old: The trained model.
        new: An untrained one; numbers without a counterpart stay, or become 0 where they feed the first layer's sum.
        old_encoding: Encoding of the old model.
        new_encoding: Encoding of the new model.
    """
    before, after = _Meaning(old, old_encoding, old_encoding), _Meaning(new, new_encoding, old_encoding)
    source, target = old.state_dict(), {name: tensor.clone() for name, tensor in new.state_dict().items()}
    for name, tensor in target.items():
        if after.is_summed(name):
            tensor.zero_()
        known = before.tensors.get(after.names[name])
        if known is None:
            continue
        axes = zip(before.axes(known, tensor.dim()), after.axes(name, tensor.dim()), strict=True)
        indices = [_common(*pair, size) for pair, size in zip(axes, tensor.shape, strict=True)]
        froms, intos = zip(*indices, strict=True)
        tensor.numpy()[np.ix_(*intos)] = source[known].numpy()[np.ix_(*froms)]
    return target


class _Meaning:
    """The meaning of each number of a model's tensors.

    Args:
        model: The model.
        encoding: The encoding of its inputs.
        known: The encoding of the old model, which decides which features are the same.
    """

    def __init__(self, model: TabularFastKAN, encoding: Preprocessor, known: Preprocessor) -> None:
        self.config = config = model.config
        self.sizes = [] if model.encoder.indicators is None else model.encoder.indicators.sizes
        numeric = _numeric_keys(encoding, known)
        self.coded = _coded_keys(encoding, known)
        inputs = config.inputs
        widths = [embedding_width(config.cardinalities[index], config.embedding_dim) for index in inputs.embedded]
        columns = zip(inputs.embedded, widths, strict=True)
        embedded = [(self.coded[index], unit) for index, width in columns for unit in range(width)]
        self.inputs: list[Hashable] = [*(numeric[index] for index in inputs.curved), *embedded]
        # An ID counts by column and value, whatever the other IDs. IDs that share a code match only if there are as
        # many codes.
        self.ids: list[Hashable] = [None]
        for feature in encoding.sparse:
            shared = [("shared", feature.name, feature.buckets, bucket) for bucket in range(feature.buckets)]
            self.ids += [*((feature.name, feature.vector_bytes, each) for each in feature.ids), *shared]
        self.binary = [numeric[index] for index in inputs.binary]
        is_ensemble = config.model != "fastkan"
        self.first = "network.first." if is_ensemble else "network.layers.0."
        last = len(config.hidden)
        self.last = f"network.rest.{last - 1}." if is_ensemble else f"network.layers.{last}."
        # An embedding is identified by its column, as its index among the embeddings may differ.
        embeddings = {f"encoder.embeddings.{index}.weight": self.coded[at] for index, at in enumerate(inputs.embedded)}
        self.names: dict[str, Hashable] = {name: embeddings.get(name, name) for name in model.state_dict()}
        self.tensors = {meaning: name for name, meaning in self.names.items()}

    def is_summed(self, name: str) -> bool:
        """Return whether a tensor's numbers are summed into the output of the first layer, and so may begin at 0."""
        return name in ("encoder.binary_linear.weight", "encoder.indicators.weight", SPARSE_WEIGHT) or (
            name.startswith(f"{self.first}spline") or name.startswith(f"{self.first}base")
        )

    def axes(self, name: str, dimensions: int) -> Axes:
        """Return the meaning of the numbers along each axis of a tensor."""
        outputs = self._first_outputs()
        labels = self.config.labels
        centers = [(key, center) for key in self.inputs for center in range(self.config.num_centers)]
        known: dict[str, Axes] = {
            "encoder.binary_linear.weight": (outputs, self.binary),
            "encoder.indicators.weight": (self._codes(), outputs),
            SPARSE_WEIGHT: (self.ids, outputs),
            f"{self.first}spline_linear.weight": (outputs, centers),
            f"{self.first}base_linear.weight": (outputs, self.inputs),
            f"{self.first}base_linear.bias": (outputs,),
            f"{self.first}layernorm.weight": (self.inputs,),
            f"{self.first}layernorm.bias": (self.inputs,),
            "bias": (labels,),
            "calibration_scale": (labels,),
            "calibration_shift": (labels,),
        }
        if self.config.hidden:
            known |= {
                f"{self.last}spline_weight": (None, labels, None),
                f"{self.last}base_weight": (None, labels, None),
                f"{self.last}base_bias": (None, None, labels),
                f"{self.last}spline_linear.weight": (labels, None),
                f"{self.last}base_linear.weight": (labels, None),
                f"{self.last}base_linear.bias": (labels,),
            }
        return known.get(name, (None,) * dimensions)

    def _first_outputs(self) -> Keys | None:
        """Return the meaning of the first layer's outputs: hidden units, or without those each member's labels."""
        if self.config.hidden:
            return None
        return [*itertools.product(range(self.config.members), self.config.labels)]

    def _codes(self) -> Keys:
        """Return the meaning of the rows of the one-hot weights' table, in the order of ``OneHotWeights``."""
        groups = [tuple(self.coded[index] for index in group) for group in self.config.one_hot_groups]
        blocks: list[Hashable] = [group for group in groups if len(group) == 1]
        blocks += [("missing", self.coded[index]) for index in self.config.missing]
        blocks += [group for group in groups if len(group) > 1]
        return [(block, code) for block, size in zip(blocks, self.sizes, strict=True) for code in range(size)]


def _numeric_keys(encoding: Preprocessor, known: Preprocessor) -> list[Hashable]:
    return [key for key in _keys(encoding, known) if key[0] == "numeric"]


def _coded_keys(encoding: Preprocessor, known: Preprocessor) -> list[Hashable]:
    return [key for key in _keys(encoding, known) if key[0] not in ("numeric", "sparse")]


def _keys(encoding: Preprocessor, known: Preprocessor) -> list[tuple[str, ...]]:
    """Return a key of each feature, which is the same in both encodings if and only if the feature is the same."""
    before = features_by_key(known)
    return [key if before.get(key) == feature else (*key, "new") for key, feature in features_by_key(encoding).items()]


def _common(before: Keys | None, after: Keys | None, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions along an axis with the same meaning: in the old tensor, and in the new one."""
    if before is None or after is None:
        return np.arange(size), np.arange(size)
    indices = {key: index for index, key in enumerate(before)}
    pairs = [(indices[key], index) for index, key in enumerate(after) if key in indices]
    froms, intos = np.array(pairs, np.int64).reshape(-1, 2).T
    return froms, intos
