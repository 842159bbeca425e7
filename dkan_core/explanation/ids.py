"""Which ids of a column of lists or of bits move the log-odds: over many rows, and in a row.

Shape suffixes: N rows, S codes of the longest row, V codes, H the first layer's outputs over all members.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dkan_core.explanation.columns import Column, sparse_codes
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.utils.arrays import Array

# Ids to show of a column. Three times as many are measured, as the gradient may rank some too low.
STRONGEST, MEASURED = 20, 60
# Ids in a reason; each takes a few characters in every row.
NAMED = 5
NO_IDS, OTHER_ID = "no IDs", "another ID"


@dataclass(frozen=True, kw_only=True)
class IdEffect:
    """Effect of an id on the log-odds."""

    id: str
    share: float
    """Share of the rows read that have it."""

    effect: float
    """Mean over rows of the log-odds with it less those without it."""

    @property
    def weight(self) -> float:
        """The standard deviation of the log-odds due to it: large where the effect is large and the id is not rare."""
        return abs(self.effect) * float(np.sqrt(self.share * (1 - self.share)))


@dataclass(frozen=True, kw_only=True)
class ColumnIds:
    """The strongest ids of a column."""

    name: str
    codes: int
    """Ids, and groups of others, that the model has weights for."""

    strongest: list[IdEffect]
    """The largest weight first."""


def read_ids(response: ModelResponse, column: Column, rows: int) -> ColumnIds:
    """Measure what the strongest ids of a column do to the log-odds of the first label explained.

    The ids to measure are chosen by the mean gradient, which estimates the effect of every id at once.

    Args:
        response: The model's.
        column: The column of ids.
        rows: Over how many rows means are taken; shares are those of all.
    """
    assert column.sparse is not None
    codes_NS = sparse_codes(column, response.arrays["sparse"])
    own = slice(column.first_code, column.last_code + 1)
    share_V = np.bincount(codes_NS.ravel(), minlength=own.stop)[own] / len(codes_NS)
    spread_V = np.sqrt(share_V * (1 - share_V))
    slope_V = response.sparse_slopes(rows)[own]
    order_V = np.argsort(-np.abs(slope_V) * spread_V, kind="stable")[:MEASURED]
    chosen_V = order_V[share_V[order_V] > 0]
    effect_V = response.with_less_without(chosen_V + column.first_code, rows)
    found = [
        IdEffect(id=id_text(column, int(index)), share=float(share_V[index]), effect=float(effect))
        for index, effect in zip(chosen_V, effect_V, strict=True)
    ]
    strongest = sorted(found, key=lambda each: -each.weight)[:STRONGEST]
    return ColumnIds(name=column.name, codes=column.sparse.size, strongest=strongest)


def id_text(column: Column, index: int) -> str:
    """Return the id of a code, given its index among the column's codes."""
    assert column.sparse is not None
    ids = column.sparse.ids
    return str(ids[index]) if index < len(ids) else OTHER_ID


def row_texts(column: Column, sparse_NS: Array, added_NS: npt.NDArray[np.float32]) -> list[str]:
    """Return for each row its ids of a column, those that add most to the log-odds first, and what they add.

    Args:
        column: The column of ids.
        sparse_NS: Codes of all such columns.
        added_NS: What each of them adds.
    """
    codes_NS = sparse_codes(column, sparse_NS)
    strength_NS = np.where(codes_NS > 0, np.abs(added_NS), np.float32(-1))
    order_NS = np.argsort(-strength_NS, axis=1, kind="stable")[:, :NAMED]
    counts_N = (codes_NS > 0).sum(axis=1)
    first_NS, added_NS = (np.take_along_axis(each, order_NS, axis=1) for each in (codes_NS, added_NS))
    return [
        _row_text(column, codes[:count], added, count)
        for codes, added, count in zip(first_NS.tolist(), added_NS.tolist(), counts_N.tolist(), strict=True)
    ]


def _row_text(column: Column, codes: Sequence[int], added: Sequence[float], count: int) -> str:
    """Return a row's strongest ids with what they add, and how many more it has."""
    shown = [
        f"{id_text(column, code - column.first_code)} ({change:+.2f})"
        for code, change in zip(codes, added, strict=False)
    ]
    more = [f"{count - len(shown)} more"] if count > len(shown) else []
    return ", ".join(shown + more) or NO_IDS
