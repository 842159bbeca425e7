"""A model against an earlier one: changed importances, curves on the same axes, and rows whose score changed.

Both models read the same rows with their own encoding: the earlier one is given values that are decoded from the
prepared rows. Columns of the earlier model that these rows lack are missing for it in every row.

Shape suffixes: N rows, L labels.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.source.positive import check_positive
from dkan_core.errors import DataError
from dkan_core.explanation.additive import CROSS
from dkan_core.explanation.columns import Column, Rows, source_columns
from dkan_core.explanation.contributions import explainer_of
from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.inverse_transform import inverse_transform, written_values
from dkan_core.explanation.label_explanation import Effort, LabelExplanation, read_label
from dkan_core.explanation.model_response import LARGEST
from dkan_core.explanation.shifts import LEAST_CHANGE, ColumnShift, ContributionShift, ExplanationComparison, RowShift
from dkan_core.model.calibration import sigmoid
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import log_odds
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.torch_resources import best_device, torch_threads

logger = logging.getLogger(__name__)

# Rows to show, and the columns to name for each.
CHANGED_ROWS, CHANGED_REASONS = 10, 3
# The starting point of contributions: an additive model's intercept, else the mean over background rows.
BASELINE = "(baseline)"


def check_earlier(saved: SavedModel, earlier: SavedModel, labels: Sequence[str], where: str) -> None:
    """Check that an earlier model can be compared; warn of labels that it does not know, which are left out.

    Raises:
        DataError: It knows none of the labels, or counts another value as 1, or one of the two reads ids.
    """
    for each in (saved, earlier):
        if each.preprocessor.sparse:
            raise DataError(
                f"column {each.preprocessor.sparse[0].name!r} holds IDs; models with such columns are not held against "
                "others: explain each by itself, without --against"
            )
    unknown = [name for name in labels if name not in earlier.config.labels]
    known = f"was trained for the labels {', '.join(earlier.config.labels)}, and has none called {', '.join(unknown)}"
    if len(unknown) == len(labels):
        raise DataError(f"{where}: {known}")
    if unknown:
        logger.warning("%s: %s: not compared", where, known)
    check_positive(earlier.config.positive, where, saved.config.positive, "the model")


def compare_explanations(
    saved: SavedModel,
    earlier: SavedModel,
    found: Explanation,
    arrays: Arrays,
    *,
    labels: Sequence[str],
    where: str,
    effort: Effort,
) -> Explanation:
    """Return an explanation beside what an earlier model had learned."""
    ours, theirs = (_kinds(source_columns(each.preprocessor)) for each in (saved, earlier))
    only_here = [name for name, kind in ours.items() if theirs.get(name) != kind]
    only_there = [name for name, kind in theirs.items() if ours.get(name) != kind]
    if only_here or only_there:
        both = len(ours) - len(only_here)
        logger.warning("%s: reads %d of the model's %d columns, and %d others", where, both, len(ours), len(only_there))
    given = _encoded(saved, earlier, arrays, labels, only_there)
    quick = replace(effort, shuffles=0, slopes=False, maps=0)
    labels_found: dict[str, LabelExplanation] = {}
    for label, ours_found in found.labels.items():
        if label not in earlier.config.labels:
            labels_found[label] = ours_found
            continue
        shown = [curve.name for curve in ours_found.curves]
        before = read_label(earlier, given, split=found.split, label=label, effort=quick, seed=found.seed, drawn=shown)
        rows, mean_change = _row_shifts(saved, earlier, label, arrays, given)
        against = ExplanationComparison(
            model=where,
            only_here=only_here,
            only_there=only_there,
            importance=_shifts(ours_found.importance, before.importance, only_here, only_there),
            curves=[curve for curve in before.curves if curve.name not in only_here],
            rows=rows,
            mean_change=mean_change,
        )
        labels_found[label] = replace(ours_found, against=against)
    return replace(found, labels=labels_found)


def _kinds(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: column.kind for column in columns}


def _encoded(
    saved: SavedModel, earlier: SavedModel, arrays: Arrays, labels: Sequence[str], missing: Sequence[str]
) -> Arrays:
    """Return the rows as the earlier model reads them, with its labels."""
    table = inverse_transform(arrays, saved.preprocessor)
    for column in source_columns(earlier.preprocessor):
        if column.name in missing:
            nothing = pa.nulls(len(table), pa.string() if column.kind == "category" else pa.float64())
            kept = table.drop_columns(column.name) if column.name in table.column_names else table
            table = kept.append_column(column.name, nothing)
    rows = len(arrays["labels"])
    of_label = {name: arrays["labels"][:, index] for index, name in enumerate(labels)}
    nothing_N = np.full(rows, NOT_MEASURED, dtype=np.uint8)
    given = {
        **earlier.preprocessor.transform(table, "rows read back"),
        "labels": np.stack([of_label.get(name, nothing_N) for name in earlier.config.labels], axis=1),
    }
    return {**given, "weight": arrays["weight"]} if "weight" in arrays else given


def _shifts(
    ours: Sequence[Importance], theirs: Sequence[Importance], only_here: Sequence[str], only_there: Sequence[str]
) -> list[ColumnShift]:
    now = {each.name: each.effect for each in ours}
    before = {each.name: each.effect for each in theirs}
    shifts = [
        ColumnShift(
            name=name,
            effect=now.get(name),
            # A column of another kind counts as another column.
            earlier_effect=None if name in only_here else before.get(name),
        )
        for name in now
    ]
    gone = [ColumnShift(name=name, effect=None, earlier_effect=before[name]) for name in only_there]
    return sorted(shifts + gone, key=lambda shift: -abs(shift.change))


def _row_shifts(
    saved: SavedModel, earlier: SavedModel, label: str, arrays: Arrays, given: Arrays
) -> tuple[list[RowShift], float]:
    """Return the rows whose log-odds changed the most, and the mean change of all."""
    device = best_device()
    both = [(saved, arrays), (earlier, given)]
    after_N, before_N = (
        log_odds(model.module.to(device), rows, device)[:, model.config.labels.index(label)].double().cpu().numpy()
        for model, rows in both
    )
    change_N = after_N.clip(-LARGEST, LARGEST) - before_N.clip(-LARGEST, LARGEST)
    chosen = np.argsort(-np.abs(change_N), kind="stable")[:CHANGED_ROWS]
    decoded = inverse_transform({name: array[chosen] for name, array in arrays.items()}, saved.preprocessor)
    values = written_values(decoded, saved.preprocessor)
    reasons = _reasons(both, label, change_N[chosen], chosen, values, device)
    probability_N, earlier_N = sigmoid(after_N[chosen]), sigmoid(before_N[chosen])
    rows = [
        RowShift(
            number=int(number),
            probability=float(probability_N[index]),
            earlier_probability=float(earlier_N[index]),
            log_odds=float(after_N[number]),
            earlier_log_odds=float(before_N[number]),
            reasons=reasons[index] if reasons else [],
        )
        for index, number in enumerate(chosen)
    ]
    return rows, float(np.abs(change_N).mean())


def _reasons(
    both: Sequence[tuple[SavedModel, Arrays]],
    label: str,
    change_N: npt.NDArray[np.float64],
    chosen: Rows,
    values: pa.Table,
    device: torch.device,
) -> list[list[ContributionShift]]:
    """Return for each row its largest changes: of the columns' contributions, and of the baseline."""
    if any(saved.preprocessor.counts is None for saved, _ in both):
        return []
    added: list[dict[str, float]] = [{} for _ in chosen]
    for sign, (saved, arrays) in zip((1, -1), both, strict=True):
        index = [saved.config.labels.index(label)]
        explainer = explainer_of(saved.module, saved.preprocessor, device, index)
        with torch_threads(1):
            found_NF = explainer.explain(
                {name: array[chosen] for name, array in arrays.items() if name in ("numeric", "categorical")}
            )[:, :, 0]
        names = [CROSS.join(columns) for columns in explainer.sources]
        for row, found_F in zip(added, found_NF.tolist(), strict=True):
            for name, value in zip(names, found_F, strict=True):
                row[name] = row.get(name, 0.0) + sign * value
    for row, total in zip(added, change_N.tolist(), strict=True):
        row[BASELINE] = total - sum(row.values())
    return [
        [
            ContributionShift(column=name, value=_value_of(values, name, index), log_odds=change)
            for name, change in sorted(row.items(), key=lambda item: -abs(item[1]))[:CHANGED_REASONS]
            if abs(change) >= LEAST_CHANGE
        ]
        for index, row in enumerate(added)
    ]


def _value_of(values: pa.Table, name: str, index: int) -> str:
    """Return a row's value; nothing for the baseline, for pairs and for columns that the rows lack."""
    if name not in values.column_names:
        return ""
    value: str | None = values[name][index].as_py()
    return "missing" if value is None else value
