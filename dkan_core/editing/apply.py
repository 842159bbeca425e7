"""Edits applied to the terms of a model.

Shape suffixes: C cells of a term, V rows of the table, M members, L labels.
"""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.editing.chosen_values import Mask, chosen_values
from dkan_core.editing.edits import Edit
from dkan_core.editing.lookup import find_term
from dkan_core.errors import ConfigError
from dkan_core.explanation.additive import TermGroup, term_groups
from dkan_core.explanation.term_cells import TermCells, cells_of
from dkan_core.model.additive_terms import AdditiveTerms, centered, purified
from dkan_core.model.architecture import ModelConfig, additive_shape
from dkan_core.utils.arrays import Float64

logger = logging.getLogger(__name__)

LARGEST = 1000.0
"""Largest log-odds of a term, far beyond certainty. Models score in float32, which adds to it with four decimals."""


@dataclass(frozen=True, kw_only=True)
class ResolvedEdit:
    """An edit with the term and labels in a model that it refers to."""

    edit: Edit
    group: TermGroup
    labels: Sequence[int]
    """Indices of the labels to change."""

    where: str
    """What messages call it."""

    @property
    def of_pair(self) -> bool:
        """Whether its term is a pair of columns."""
        return len(self.group.columns) > 1


def apply_edits(
    terms: AdditiveTerms, preprocessor: Preprocessor, edits: Sequence[Edit], earlier: Sequence[Mapping[str, Any]] = ()
) -> AdditiveTerms:
    """Return terms after some edits, those of pairs before those of columns.

    The effects of a single column in an edited pair move to that column's curve. Edits of columns are applied after
    that, so they hold in the result. Finally means move to the intercept, which changes no scores.

    Args:
        terms: Those of a model.
        preprocessor: Its encoding.
        edits: What to change, in this order.
        earlier: Previous edits, from the model's metrics: the columns' curves that they changed stay unchanged.

    Raises:
        ConfigError: An edit names a term, label or category that the model does not have, does not fit its term, or
            makes log-odds too large.
    """
    groups = term_groups(terms.layout, preprocessor)
    asked = [_resolved(number, edit, groups, terms.config.labels) for number, edit in enumerate(edits, start=1)]
    for each in asked:
        if each.of_pair:
            terms = _applied(terms, preprocessor, each)
    terms = _with_curves(purified(terms), terms, groups, earlier)
    for each in asked:
        if not each.of_pair:
            terms = _applied(terms, preprocessor, each)
    terms = replace(centered(terms), config=_without_constraints(terms.config, asked, preprocessor))
    settled = [each for each in asked if each.edit.action in ("monotone", "remove") and not each.of_pair]
    for each in settled:
        parts = {*preprocessor.calendar_of(each.edit.term)} - {other.edit.term for other in settled}
        if left := [group.name for group in groups if _is_left(group, each, parts, terms)]:
            logger.warning("%s: these terms still use the column: %s", each.where, ", ".join(left))
    return terms


def _without_constraints(config: ModelConfig, asked: Sequence[ResolvedEdit], preprocessor: Preprocessor) -> ModelConfig:
    """Return the architecture without constraints that would change edited curves."""
    edited = {column for each in asked for column in each.group.columns}
    shape = additive_shape(config)
    kept = tuple(each for each in shape.monotone if preprocessor.numeric[each[0]].name not in edited)
    return config.model_copy(update={"additive": shape.model_copy(update={"monotone": kept})})


def _with_curves(
    terms: AdditiveTerms, before: AdditiveTerms, groups: Sequence[TermGroup], edits: Sequence[Mapping[str, Any]]
) -> AdditiveTerms:
    """Return terms in which the columns' curves that some edits have changed are restored."""
    table_VML, labels = terms.table_VML.copy(), terms.config.labels
    for edit in edits:
        group = find_term(edit["term"], groups, "an earlier edit")
        if len(group.columns) == 1:
            of_label = slice(None) if edit.get("label") is None else labels.index(edit["label"])
            rows = _rows(group, terms)
            table_VML[rows, :, of_label] = before.table_VML[rows, :, of_label]
    return replace(terms, table_VML=table_VML)


def _is_left(group: TermGroup, asked: ResolvedEdit, parts: Set[str], terms: AdditiveTerms) -> bool:
    """Return whether a term is nonzero, and is a pair with the edited column or a calendar part of it."""
    uses = group.name in parts or (len(group.columns) > 1 and asked.edit.term in group.columns)
    return uses and bool(terms.table_VML[_rows(group, terms)][:, :, [*asked.labels]].any())


def _rows(group: TermGroup, terms: AdditiveTerms) -> npt.NDArray[np.int64]:
    return np.concatenate([np.r_[terms.layout.terms[index].rows] for index in group.indices])


def _resolved(number: int, edit: Edit, groups: Sequence[TermGroup], labels: Sequence[str]) -> ResolvedEdit:
    """Return an edit with the term and the labels that it names."""
    where = f"edit {number} ({edit.action} of {edit.term!r})"
    group = find_term(edit.term, groups, where)
    if edit.label is not None and edit.label not in labels:
        raise ConfigError(f"{where}: the model has no label {edit.label!r}; its labels are {', '.join(labels)}")
    chosen = range(len(labels)) if edit.label is None else [labels.index(edit.label)]
    return ResolvedEdit(edit=edit, group=group, labels=chosen, where=where)


@np.errstate(over="ignore", invalid="ignore")  # values that are too large are refused at the end
def _applied(terms: AdditiveTerms, preprocessor: Preprocessor, asked: ResolvedEdit) -> AdditiveTerms:
    edit, where = asked.edit, asked.where
    table_VML = terms.table_VML.copy()
    if edit.action in ("remove", "scale"):
        rows = _rows(asked.group, terms)
        factor = 0.0 if edit.factor is None else edit.factor
        for label in asked.labels:
            table_VML[rows, :, label] *= factor
        return _checked(replace(terms, table_VML=table_VML), terms, asked)
    cells = cells_of(asked.group, terms, preprocessor)
    chosen_C = None
    if edit.action in ("flatten", "set"):
        chosen_C = chosen_values(edit, cells, asked.group, terms, preprocessor, where)
    for label in asked.labels:
        before_V = terms.mean_VL[:, label]
        after_V = before_V.copy()
        cells.put(after_V, _changed(edit, cells, cells.effects(before_V), chosen_C, where))
        # All members shift alike, as an edit says nothing about the uncertainty of a curve.
        table_VML[:, :, label] += (after_V - before_V)[:, None]
    return _checked(replace(terms, table_VML=table_VML), terms, asked)


def _checked(terms: AdditiveTerms, before: AdditiveTerms, asked: ResolvedEdit) -> AdditiveTerms:
    """Return edited terms; refuse log-odds that are too large for a model, unless they were larger before."""
    rows = _rows(asked.group, terms)
    largest, was = (np.abs(each.mean_VL[rows]).max() for each in (terms, before))
    # Tolerance, as the table is rounded to float32.
    if largest <= max(LARGEST * (1 + 1e-6), was):
        return terms
    told = {name: getattr(asked.edit, name) for name in ("factor", "low", "high", "to")}
    shown = ", ".join(f"{name} {value:g}" for name, value in told.items() if value is not None)
    raise ConfigError(f"{asked.where}: {shown} makes log-odds exceed the limit of {LARGEST:g}")


def _changed(edit: Edit, cells: TermCells, effect_C: Float64, chosen_C: Mask | None, where: str) -> Float64:
    """Return the effect of each value after an edit."""
    if edit.action == "clip":
        low = -np.inf if edit.low is None else edit.low
        return effect_C.clip(low, np.inf if edit.high is None else edit.high)
    if edit.action == "center":
        return effect_C - _mean(effect_C, cells.weight_C)
    if chosen_C is not None:
        level = _mean(effect_C[chosen_C], cells.weight_C[chosen_C]) if edit.to is None else edit.to
        return np.where(chosen_C, level, effect_C)
    if not cells.ordered:
        raise ConfigError(f"{where}: only a numeric column can be monotone")
    return _isotonic(effect_C, cells, rising=edit.direction == "+")


def _isotonic(effect_C: Float64, cells: TermCells, *, rising: bool) -> Float64:
    from sklearn.isotonic import IsotonicRegression

    # A frequent value and the others of its code have no order, so they share a level.
    some_C = cells.code_C > 0
    # A tiny weight, which matters only for values without rows.
    weight_C = cells.weight_C[some_C] + 1e-9
    found_C = effect_C.copy()
    regression = IsotonicRegression(increasing=rising)
    found_C[some_C] = regression.fit_transform(cells.code_C[some_C], effect_C[some_C], sample_weight=weight_C)
    return found_C


def _mean(effect_C: Float64, weight_C: Float64) -> float:
    total = float(weight_C.sum())
    return float(weight_C @ effect_C) / total if total else float(effect_C.mean())
