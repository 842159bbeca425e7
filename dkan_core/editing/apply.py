"""Edits applied to the terms of a model.

Shape suffixes: C cells of a term, V rows of the table, M members, L labels.
"""

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import FIRST_CODE, Preprocessor
from dkan_core.editing.edits import Edit
from dkan_core.editing.lookup import find_term
from dkan_core.errors import ConfigError
from dkan_core.explanation.additive import TermGroup, term_groups
from dkan_core.explanation.term_cells import TermCells, cells_of, codes_of_values, score_rows
from dkan_core.model.additive_terms import AdditiveTerms, Float64, centered, purified

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

LARGEST = 1e30
"""Of a term's log-odds: the sums of many such ones fit float32, in which models are stored and score."""


@dataclass(frozen=True, kw_only=True)
class ResolvedEdit:
    """An edit with what it names in a model."""

    edit: Edit
    group: TermGroup
    labels: Sequence[int]
    """Places of the labels to change."""

    where: str
    """What messages call it."""

    @property
    def of_pair(self) -> bool:
        """Whether its term is a pair of columns."""
        return len(self.group.columns) > 1


def apply_edits(terms: AdditiveTerms, preprocessor: Preprocessor, edits: Sequence[Edit]) -> AdditiveTerms:
    """Return terms after some edits, those of pairs before those of columns.

    What an edited pair says of one column alone moves to that column's curve. The edits of columns come after it and
    so hold in the result. At the end means go to the intercept, which changes no answer.

    Args:
        terms: Those of a model.
        preprocessor: Its encoding.
        edits: What to change, in this order.

    Raises:
        ConfigError: An edit names a term, label or category that the model does not have, does not fit its term, or
            makes log-odds too large.
    """
    groups = term_groups(terms.layout, preprocessor)
    asked = [_resolved(number, edit, groups, terms.config.labels) for number, edit in enumerate(edits, start=1)]
    for of_pairs in (True, False):
        for each in asked:
            if each.of_pair == of_pairs:
                terms = _applied(terms, preprocessor, each)
        terms = purified(terms) if of_pairs else centered(terms)
    settled = [each for each in asked if each.edit.action in ("monotone", "remove") and not each.of_pair]
    for each in settled:
        parts = {*preprocessor.calendar_of(each.edit.term)} - {other.edit.term for other in settled}
        if left := [group.name for group in groups if _is_left(group, each, parts, terms)]:
            logger.warning("%s: these terms still use the column: %s", each.where, ", ".join(left))
    return terms


def _is_left(group: TermGroup, asked: ResolvedEdit, parts: Set[str], terms: AdditiveTerms) -> bool:
    """Tell whether a term is a pair with an edited column, or a part of its calendar, and adds anything."""
    uses = group.name in parts or (len(group.columns) > 1 and asked.edit.term in group.columns)
    return uses and bool(terms.table_VML[_rows(group, terms)][:, :, [*asked.labels]].any())


def _rows(group: TermGroup, terms: AdditiveTerms) -> npt.NDArray[np.int64]:
    return np.concatenate([np.r_[terms.layout.terms[place].rows] for place in group.places])


def _resolved(number: int, edit: Edit, groups: Sequence[TermGroup], labels: Sequence[str]) -> ResolvedEdit:
    """Return an edit with the term and the labels that it names."""
    where = f"edit {number} ({edit.action} of {edit.term!r})"
    group = find_term(edit.term, groups, where)
    if edit.label is not None and edit.label not in labels:
        raise ConfigError(f"{where}: label {edit.label!r} is none of the model's, {', '.join(labels)}")
    chosen = range(len(labels)) if edit.label is None else [labels.index(edit.label)]
    return ResolvedEdit(edit=edit, group=group, labels=chosen, where=where)


def _applied(terms: AdditiveTerms, preprocessor: Preprocessor, asked: ResolvedEdit) -> AdditiveTerms:
    edit, where = asked.edit, asked.where
    table_VML = terms.table_VML.copy()
    if edit.action in ("remove", "scale"):
        rows = _rows(asked.group, terms)
        factor = 0.0 if edit.factor is None else edit.factor
        with np.errstate(over="ignore"):
            for label in asked.labels:
                table_VML[rows, :, label] *= factor
        return _checked(replace(terms, table_VML=table_VML), asked)
    cells = cells_of(asked.group, terms, preprocessor)
    chosen_C = _range(edit, cells, asked.group, terms, preprocessor, where) if edit.action == "flatten" else None
    for label in asked.labels:
        before_V = terms.mean_VL[:, label]
        after_V = before_V.copy()
        cells.put(after_V, _changed(edit, cells, cells.effects(before_V), chosen_C, where))
        # What members disagree on stays as it is: an edit says nothing of how certain a curve is.
        table_VML[:, :, label] += (after_V - before_V)[:, None]
    return _checked(replace(terms, table_VML=table_VML), asked)


def _checked(terms: AdditiveTerms, asked: ResolvedEdit) -> AdditiveTerms:
    """Return edited terms, whose log-odds must not be too large for a model."""
    if np.abs(terms.table_VML).max() <= LARGEST:
        return terms
    told = {name: getattr(asked.edit, name) for name in ("factor", "low", "high")}
    shown = ", ".join(f"{name} {value:g}" for name, value in told.items() if value is not None)
    raise ConfigError(f"{asked.where}: {shown} gives too large log-odds; expected none beyond {LARGEST:g}")


def _changed(edit: Edit, cells: TermCells, effect_C: Float64, chosen_C: Mask | None, where: str) -> Float64:
    """Return what each value adds after an edit."""
    if edit.action == "clip":
        low = -np.inf if edit.low is None else edit.low
        return effect_C.clip(low, np.inf if edit.high is None else edit.high)
    if edit.action == "center":
        return effect_C - _mean(effect_C, cells.weight_C)
    if edit.action == "flatten":
        assert chosen_C is not None
        level = _mean(effect_C[chosen_C], cells.weight_C[chosen_C])
        return np.where(chosen_C, level, effect_C)
    if not cells.ordered:
        raise ConfigError(f"{where}: only a numeric column can be monotone")
    return _isotonic(effect_C, cells, rising=edit.direction == "+")


def _isotonic(effect_C: Float64, cells: TermCells, *, rising: bool) -> Float64:
    from sklearn.isotonic import IsotonicRegression

    # Values of one code are neighbours in no order, a frequent one and those about it: they share a level.
    some_C = cells.code_C > 0
    # So little that only values without rows notice.
    weight_C = cells.weight_C[some_C] + 1e-9
    found_C = effect_C.copy()
    regression = IsotonicRegression(increasing=rising)
    found_C[some_C] = regression.fit_transform(cells.code_C[some_C], effect_C[some_C], sample_weight=weight_C)
    return found_C


def _mean(effect_C: Float64, weight_C: Float64) -> float:
    total = float(weight_C.sum())
    return float(weight_C @ effect_C) / total if total else float(effect_C.mean())


def _range(
    edit: Edit, cells: TermCells, group: TermGroup, terms: AdditiveTerms, preprocessor: Preprocessor, where: str
) -> Mask:
    """Return which values a range or a list of categories holds."""
    if len(group.columns) > 1:
        raise ConfigError(f"{where}: a pair has no range; clip, scale or remove it")
    term = terms.layout.terms[group.places[0]]
    if edit.values is not None:
        if cells.ordered:
            raise ConfigError(f"{where}: is a numeric column, which has no categories; give start or stop")
        feature = preprocessor.coded[term.features[0] - terms.config.num_numeric]
        unknown = [value for value in edit.values if value not in feature.names[: term.size - FIRST_CODE]]
        if unknown:
            raise ConfigError(f"{where}: {unknown[0]!r} is no category of the column that has a number of its own")
        return np.isin(cells.code_C, [FIRST_CODE + feature.names.index(value) for value in edit.values])
    if not cells.ordered:
        raise ConfigError(f"{where}: is no numeric column, which a range needs; give values")
    numeric = preprocessor.numeric[term.features[0]]
    low = -np.inf if edit.start is None else edit.start
    high = np.inf if edit.stop is None else edit.stop
    if low > numeric.knots[-1] or high < numeric.knots[0]:
        raise ConfigError(
            f"{where}: the column has values from {numeric.knots[0]:g} to {numeric.knots[-1]:g}, none there"
        )
    first, last = score_rows(terms, term, codes_of_values(np.array([low, high]), numeric)) - term.first
    inside_C = (cells.code_C >= first) & (cells.code_C <= last) & (cells.code_C > 0)
    exact_C = ~np.isnan(cells.value_C)
    chosen_C = np.where(exact_C, (cells.value_C >= low) & (cells.value_C <= high), inside_C)
    if not cells.weight_C[chosen_C].any():
        raise ConfigError(f"{where}: no row of the training data is from start {low:g} to stop {high:g}")
    return chosen_C
