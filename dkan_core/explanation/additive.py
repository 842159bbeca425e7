"""What the terms of an additive model add to a row's log-odds: exact, as the model is the sum of its terms.

Shape suffixes: N rows, T terms of the model's table, G groups of terms, L labels.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.data.encoding.preprocessor import UNSEEN, Preprocessor
from dkan_core.explanation.columns import Cells, Column
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import Layout
from dkan_core.model.additive_terms import terms_of
from dkan_core.model.decoding import score_codes
from dkan_core.utils.arrays import Arrays, Float64

# Share of a curve's values, weighted by the rows, that the bands of ``dkan explain`` should cover.
COVERAGE = 0.9

CROSS = " x "
"""Between the names of a pair's columns."""


@dataclass(frozen=True, kw_only=True)
class TermGroup:
    """Terms that are shown as one: those of a source column, or of a pair of columns."""

    columns: tuple[str, ...]
    indices: tuple[int, ...]
    """Indices of terms of the layout; a numeric column may have one for its score and one for its frequent values."""

    @property
    def name(self) -> str:
        """The column, or both with a cross between them."""
        return CROSS.join(self.columns)


def term_groups(layout: Layout, preprocessor: Preprocessor) -> list[TermGroup]:
    """Return all terms as they are shown: columns in the order of the encoding, then pairs."""
    names = [feature.name for feature in (*preprocessor.numeric, *preprocessor.coded)]
    indices: dict[tuple[str, ...], list[int]] = {(name,): [] for name in dict.fromkeys(names)}
    for index, term in enumerate(layout.terms):
        indices.setdefault(tuple(names[feature] for feature in term.features), []).append(index)
    return [TermGroup(columns=columns, indices=tuple(found)) for columns, found in indices.items() if found]


class AdditiveExplainer:
    """Splits the log-odds of rows into the terms of an additive model.

    Args:
        model: The model, of the form "tables".
        preprocessor: Its encoding.
        labels: Indices of the labels to explain. Default: all.
    """

    def __init__(self, model: AdditiveFastKAN, preprocessor: Preprocessor, labels: Sequence[int] | None = None) -> None:
        self._model = model
        self._labels = list(range(len(model.config.labels)) if labels is None else labels)
        terms = terms_of(model)
        self._mean_VL: Float64 = terms.mean_VL[:, self._labels]
        self._intercept_L = terms.intercept_L[self._labels]
        self._terms = terms.layout.terms
        self._groups = term_groups(terms.layout, preprocessor)
        # A row's indices are in the order of the features, not of the table.
        order = {features: index for index, features in enumerate(model.index_features)}
        self._order = [order[term.features] for term in self._terms]

    def of_labels(self, indices: Sequence[int]) -> Self:
        """Return an explainer of some of its labels, given their indices among those that it explains."""
        narrowed = copy.copy(self)
        narrowed._labels = [self._labels[index] for index in indices]
        narrowed._mean_VL, narrowed._intercept_L = self._mean_VL[:, [*indices]], self._intercept_L[[*indices]]
        return narrowed

    @property
    def sources(self) -> list[tuple[str, ...]]:
        """The source columns of each contribution: one, or the two of a pair."""
        return [group.columns for group in self._groups]

    @property
    def baseline(self) -> npt.NDArray[np.float32]:
        """The intercept ``(L,)``, which the contributions are added to; each has a mean of 0 over the training data."""
        return self._intercept_L.astype(np.float32)

    def explain(self, arrays: Arrays) -> npt.NDArray[np.float32]:
        """Return what each group of terms adds to the calibrated log-odds of each label, of prepared rows.

        Shape:
            - Output: ``(N, G, L)``
        """
        return self.exact(arrays).astype(np.float32)

    def explain_ids(self, arrays: Arrays) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the same, and the contributions of single ids: additive models read none, ``(N, 0, L)``."""
        found_NGL = self.explain(arrays)
        return found_NGL, np.empty((len(found_NGL), 0, found_NGL.shape[2]), dtype=np.float32)

    def exact(self, arrays: Arrays) -> Float64:
        """Return the same in float64: with the intercept, a row adds up to its log-odds."""
        device = self._model.bias.device
        stored = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        indices_NT = self._model.indices(stored.get("numeric"), stored.get("categorical")).cpu().numpy()
        found_NGL = np.zeros((len(indices_NT), len(self._groups), len(self._labels)))
        for group_index, group in enumerate(self._groups):
            for index in group.indices:
                found_NGL[:, group_index] += self._mean_VL[indices_NT[:, self._order[index]]]
        return found_NGL


class AdditiveCurves:
    """The terms of single columns of a model of the form "tables", and how certain they are."""

    def __init__(self, model: AdditiveFastKAN) -> None:
        self._score_rows = model.score_rows.cpu().numpy()
        self.terms = terms_of(model)
        numeric = model.config.num_numeric
        self._coded = {term.features[0] - numeric: term for term in self.terms.layout.coded}

    def of(self, column: Column, cells: Cells, label: int) -> Float64:
        """Return a column's term at some of its values, by member.

        Args:
            column: The column.
            cells: P values of it.
            label: The model's label.

        Shape:
            - Output: ``(P, M)``
        """
        found_PM = np.zeros((len(cells), self.terms.table_VML.shape[1]))
        table_VM = self.terms.table_VML[:, :, label]
        if cells.scores_P is not None:
            codes_P = score_codes(torch.from_numpy(np.ascontiguousarray(cells.scores_P))).numpy()
            found_PM += table_VM[self._score_rows[column.numeric_index, codes_P]]
        if cells.codes_P is not None and column.code_index in self._coded:
            term = self._coded[column.code_index]
            found_PM += table_VM[term.first + np.where(cells.codes_P < term.size, cells.codes_P, UNSEEN)]
        return found_PM

    @property
    def error_factor(self) -> float:
        """Factor from the members' standard deviation to a standard error whose normal band covers 90%."""
        from scipy.stats import norm, t

        members = self.terms.table_VML.shape[1]
        if members < 2:
            return 0.0
        # Few members estimate their spread badly: Student's quantile, in units of the normal one.
        widening = t.ppf((1 + COVERAGE) / 2, members - 1) / norm.ppf((1 + COVERAGE) / 2)
        return float(widening) * self.terms.spread_factor
