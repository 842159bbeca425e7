"""What the codes of rows add to a first layer's output, as sums of rows of one table: how a GPU computes it.

An embedding goes through basis and linear maps to a term of its own, so that a code adds the same vector in whatever
row it stands: as a one-hot weight does. All of these vectors are computed once in a step, for every code instead of
every row, and a row's are looked up. Where there are many rows, vectors that depend on the same few features are added
up first, for every joint value of these features: fewer are looked up then.

Shape suffixes: B rows, C coded features, T one-hot groups and embedded columns, K features of the largest group, V rows
of the table, E numbers of all embeddings, I inputs that they are, H outputs.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.data.encoding.preprocessor import UNSEEN
from dkan_core.model.kernels.native_input import EmbeddedColumn, OneHotGroup

Integers = npt.NDArray[Any]

JOINT_VALUES = 1024
"""Most joint values of features that share no group."""

MAX_JOINT_VALUES = 1 << 16
"""Most joint values of any features: with more, their groups stay separate."""

WORTH_JOINING = 50_000
"""Lookups that summing twice has to save: about as many take as long as the launches of a second sum."""


class TableIndices(nn.Module):
    """Where rows of data find their vectors in a table, by their codes.

    Args:
        groups: The groups, each with its rows of the table.
        device: Device of the codes.

    Shape:
        - Input: ``(B, C)`` int32
        - Output: ``(B, T)`` int32

    >>> TableIndices([OneHotGroup(7, 12, 0, [(0, 4), (1, 1)])])(torch.tensor([[2, 3]], dtype=torch.int32))
    tensor([[18]], dtype=torch.int32)
    """

    features_TK: Tensor
    strides_TK: Tensor
    caps_T: Tensor
    firsts_T: Tensor

    def __init__(self, groups: Sequence[OneHotGroup], device: torch.device | None = None) -> None:
        super().__init__()
        most = max(len(group.columns) for group in groups)
        # All groups get the same number of features: codes of padding are multiplied by 0.
        columns = [[*group.columns, *[(0, 0)] * (most - len(group.columns))] for group in groups]
        numbers = {
            "features_TK": [feature for group in columns for feature, _ in group],
            "strides_TK": [[stride for _, stride in group] for group in columns],
            "caps_T": [group.cap or np.iinfo(np.int32).max for group in groups],
            "firsts_T": [group.first for group in groups],
        }
        for name, each in numbers.items():
            self.register_buffer(name, torch.tensor(each, dtype=torch.int32, device=device), persistent=False)

    def forward(self, codes_BC: Tensor) -> Tensor:
        codes_BTK = codes_BC.index_select(1, self.features_TK).unflatten(1, self.strides_TK.shape)
        joint_BT = (codes_BTK * self.strides_TK).sum(2, dtype=torch.int32)
        indices_BT: Tensor = joint_BT.masked_fill(joint_BT >= self.caps_T, UNSEEN) + self.firsts_T
        return indices_BT


class CodeSums:
    """Sums the rows of a table that codes stand for.

    Args:
        cardinalities: Number of codes of each coded feature.
        groups: The groups, each with its rows of the table.
        device: Device of codes and table.
    """

    def __init__(self, cardinalities: Sequence[int], groups: Sequence[OneHotGroup], device: torch.device) -> None:
        self._direct = TableIndices(groups, device)
        joint: list[OneHotGroup] = []
        parts: list[Integers] = []
        for features, own in _by_features(cardinalities, groups).items():
            sizes = [cardinalities[feature] for feature in features]
            for merged, parts_JT in _merged(features, sizes, own):
                joint.append(merged._replace(first=sum(map(len, parts))))
                parts.append(parts_JT)
        self._joint = TableIndices(joint, device)
        counts = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
        flat = np.concatenate([part.ravel() for part in parts])
        self._parts, self._starts = (
            torch.from_numpy(each.astype(np.int32)).to(device) for each in (flat, np.cumsum(counts) - counts)
        )
        self._saved_per_row = len(groups) - len(joint)

    def __call__(self, codes_BC: Tensor, table_VH: Tensor) -> Tensor:
        """Return for each row of codes ``(B, C)`` int32 the sum of the table's rows ``(B, H)``."""
        indices = self._direct
        # Only in training: a row's score does not depend on how many rows are scored with it.
        if torch.is_grad_enabled() and self._saved_per_row * len(codes_BC) > len(self._parts) + WORTH_JOINING:
            table_VH = F.embedding_bag(self._parts, table_VH, self._starts, mode="sum")
            indices = self._joint
        return F.embedding_bag(indices(codes_BC), table_VH, mode="sum")


def shared_features(cardinalities: Sequence[int], groups: Sequence[OneHotGroup]) -> list[frozenset[int]]:
    """Return few sets of features, of few joint values, so that each group's features are within one of them.

    Args:
        cardinalities: Number of codes of each coded feature.
        groups: The groups whose features must be within a set.

    >>> cross = [OneHotGroup(0, 12, 0, [(0, 4), (1, 1)])]
    >>> alone = [OneHotGroup(0, 3, 0, [(feature, 1)]) for feature in range(5)]
    >>> [sorted(each) for each in shared_features([3, 4, 9, 5, 2000], cross + alone)]
    [[0, 1], [2, 3], [4]]
    """
    sets = {frozenset(feature for feature, _ in group.columns) for group in groups}
    found: list[frozenset[int]] = []
    for crossed in sorted((each for each in sets if len(each) > 1), key=lambda each: (-len(each), sorted(each))):
        if not any(crossed <= other for other in found):
            found.append(crossed)
    alone = frozenset().union(*sets).difference(*found)
    together: list[int] = []
    for feature in sorted(alone, key=lambda each: (cardinalities[each], each)):
        if together and math.prod(cardinalities[each] for each in (*together, feature)) > JOINT_VALUES:
            found.append(frozenset(together))
            together = []
        together.append(feature)
    return [*found, frozenset(together)] if together else found


def _by_features(
    cardinalities: Sequence[int], groups: Sequence[OneHotGroup]
) -> dict[tuple[int, ...], list[OneHotGroup]]:
    """Return the groups by the set of features that they share."""
    found: dict[tuple[int, ...], list[OneHotGroup]] = {
        tuple(sorted(features)): [] for features in shared_features(cardinalities, groups)
    }
    for group in groups:
        features = {feature for feature, _ in group.columns}
        next(own for shared, own in found.items() if features <= {*shared}).append(group)
    return found


def _merged(
    features: Sequence[int], sizes: Sequence[int], groups: Sequence[OneHotGroup]
) -> Iterator[tuple[OneHotGroup, Integers]]:
    """Yield the groups that replace others, each with the rows ``(joint values, groups)`` that its own rows sum."""
    if len(groups) == 1 or math.prod(sizes) > MAX_JOINT_VALUES:
        for group in groups:
            yield group, group.first + np.arange(group.rows)[:, None]
        return
    codes = dict(zip(features, np.indices(sizes).reshape(len(sizes), -1), strict=True))
    indices = [group.indices(codes.__getitem__) for group in groups]
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    yield OneHotGroup(0, math.prod(sizes), 0, list(zip(features, strides, strict=True))), np.stack(indices, axis=1)


class EmbeddingInputs:
    """Lays embeddings out as inputs of a first layer, a row for every code: all other inputs are absent.

    Args:
        columns: The embedded columns, in the order of the layer's inputs.
        device: Device of the embeddings.
    """

    def __init__(self, columns: Sequence[EmbeddedColumn], device: torch.device) -> None:
        self._rows = sum(column.codes for column in columns)
        self._width = sum(column.width for column in columns)
        starts = itertools.accumulate((column.width for column in columns), initial=0)
        firsts = itertools.accumulate((column.codes for column in columns), initial=0)
        indices = [
            ((first + np.arange(column.codes))[:, None] * self._width + start + np.arange(column.width)).ravel()
            for column, start, first in zip(columns, starts, firsts, strict=False)
        ]
        self._indices_E = torch.from_numpy(np.concatenate(indices)).to(device)

    def lay_out(self, tables: Sequence[Tensor], absent: float) -> Tensor:
        """Return the inputs ``(V, I)``.

        Args:
            tables: The embeddings of each column.
            absent: Value of an absent input.
        """
        values_E = torch.cat([table.flatten() for table in tables])
        inputs = values_E.new_full((self._rows * self._width,), absent)
        return inputs.scatter_(0, self._indices_E, values_E).view(self._rows, self._width)
