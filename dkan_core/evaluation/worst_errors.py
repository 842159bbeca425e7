"""The worst errors of a model: the highest-scored negatives and the lowest-scored positives, with their reasons.

Shape suffixes: N rows, L labels, E errors.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.evaluation.labelled_rows import EvaluationData, RawRows, RowCollector
from dkan_core.evaluation.slices import RARE_LEVEL
from dkan_core.explanation.additive import CROSS
from dkan_core.explanation.inverse_transform import UNKNOWN, inverse_transform
from dkan_core.explanation.reasons import Reason, ReasonFinder
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.arrays import Array, Int64
from dkan_core.utils.torch_resources import best_device, torch_threads

# Rows to show, half of each kind. Ten are what a person reads.
ERRORS = 10
# Reasons to show for each row, the strongest ones.
REASONS = 5
# Labels to show, those with the most positives; each needs a gradient of its own.
MAX_LABELS = 12


@dataclass(frozen=True, kw_only=True)
class WorstError:
    """A row that the model gets wrong, and why."""

    number: int
    """Row number, counted from 0: over the files, or in the stored order of the prepared split."""

    probability: float
    reasons: list[Reason]
    """The strongest columns, the strongest first."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that the report shows; a reason has its text."""
        reasons = [{"text": reason.text, "log_odds": reason.log_odds} for reason in self.reasons]
        return {"number": self.number, "probability": self.probability, "reasons": reasons}


@dataclass(frozen=True, kw_only=True)
class WorstErrors:
    """The worst errors of one label."""

    source: str
    """The rows that the numbers count through."""

    false_positives: list[WorstError]
    false_negatives: list[WorstError]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that the report shows."""
        return {
            "source": self.source,
            "false_positives": [error.to_dict() for error in self.false_positives],
            "false_negatives": [error.to_dict() for error in self.false_negatives],
        }


def find_worst_errors(
    saved: SavedModel, data: EvaluationData, labels_NL: Array, probabilities_NL: Array, count: int
) -> dict[str, WorstErrors]:
    """Return the worst errors of the labels with the most positives; the rows are read once more.

    Values come from the raw rows if these are evaluated, else they are read back from the encoding. The result is empty
    if the model lacks the distribution of its training data, against which reasons are measured.

    Args:
        saved: The model.
        data: The rows.
        labels_NL: 0, 1 or 255 (not measured).
        probabilities_NL: What the model gives.
        count: Errors of each label, at most; 0 for none.
    """
    if not count or saved.preprocessor.counts is None:
        return {}
    positives_L = np.count_nonzero(labels_NL == 1, axis=0)
    indices = sorted(np.argsort(-positives_L, kind="stable")[:MAX_LABELS].tolist())
    chosen = {index: _worst(labels_NL[:, index], probabilities_NL[:, index], count) for index in indices}
    numbers_E = np.unique(np.concatenate([np.concatenate(pair) for pair in chosen.values()]))
    if not len(numbers_E):
        return {}
    parts = _rows(data, numbers_E, saved.preprocessor)
    is_decoded = not isinstance(data, RawRows)
    source = data.name if isinstance(data, RawRows) else f"the {data.name} split as it is stored"

    def explained(finder: ReasonFinder, index: int, high: Int64, low: Int64) -> WorstErrors:
        numbers = np.concatenate([high, low])
        of_label = finder.of_label(data.labels[index])
        reasons: dict[int, list[Reason]] = {}
        for numbers_K, rows in parts:
            wanted_K = np.isin(numbers_K, numbers)
            found = _reasons(of_label, rows.filter(pa.array(wanted_K)), decoded=is_decoded)
            reasons |= zip(numbers_K[wanted_K].tolist(), found, strict=True)
        scores = probabilities_NL[numbers, index].tolist()
        errors = [
            WorstError(number=number, probability=probability, reasons=reasons[number])
            for number, probability in zip(numbers.tolist(), scores, strict=True)
        ]
        return WorstErrors(source=source, false_positives=errors[: len(high)], false_negatives=errors[len(high) :])

    # One thread, as in ``explain``: there is too little work for several.
    with torch_threads(1):
        finder = ReasonFinder(saved, best_device())
        return {data.labels[index]: explained(finder, index, *pair) for index, pair in chosen.items()}


def _worst(labels_N: Array, scores_N: Array, count: int) -> tuple[Int64, Int64]:
    """Return the numbers of the highest-scored negatives and of the lowest-scored positives, the worst first."""
    negatives, positives = (np.flatnonzero(labels_N == value) for value in (0, 1))
    high, low = count // 2, count - count // 2
    return (
        negatives[np.argsort(-scores_N[negatives], kind="stable")[:high]],
        positives[np.argsort(scores_N[positives], kind="stable")[:low]],
    )


def _rows(data: EvaluationData, numbers_E: Int64, encoding: Preprocessor) -> list[tuple[Int64, pa.Table]]:
    """Return some rows with the columns that a model reads, and their numbers; those of a file together.

    One table per file, as files may store a column as different types, such as times of two zones.
    """
    if not isinstance(data, RawRows):
        collector = RowCollector(numbers_E)
        for _ in collector.watch(data.batches(encoding)):
            pass
        return [(numbers_E, inverse_transform(collector.rows(), encoding))]
    first, parts = 0, []
    for path in data.paths:
        begin, found = first, []
        for batch in read_batches(open_file(path, folder_types=encoding.folder_types), encoding.columns):
            start, stop = np.searchsorted(numbers_E, [first, first + len(batch)])
            found.append(pa.table(batch).take(pa.array(numbers_E[start:stop] - first)))
            first += len(batch)
        start, stop = np.searchsorted(numbers_E, [begin, first])
        if start < stop:
            parts.append((numbers_E[start:stop], pa.concat_tables(found)))
    return parts


def _reasons(finder: ReasonFinder, rows: pa.Table, *, decoded: bool) -> list[list[Reason]]:
    """Return the reasons for each row's score, the strongest first."""
    if not len(rows):
        return []
    (found,) = finder.find(rows, REASONS, "rows to explain")
    plain = [[Reason(**reason) for reason in row] for row in found.to_pylist()]
    if not decoded:
        return plain
    numbers = {name for name in rows.column_names if pa.types.is_floating(rows.schema.field(name).type)}
    return [[replace(each, value=_shown_of(each, numbers)) for each in row] for row in plain]


def _shown_of(reason: Reason, numbers: Set[str]) -> str | None:
    """Write the value of a column, or those of a pair, that were read back from the encoding.

    >>> _shown_of(Reason(column="age x kind", value="0.12345 x 0.12345", log_odds=0.5), {"age"})
    '0.1235 x 0.12345'
    """
    if reason.value is None:
        return None
    columns, values = reason.column.split(CROSS), reason.value.split(CROSS)
    if len(columns) != len(values):
        return reason.value
    return CROSS.join(_shown(value, column in numbers) for column, value in zip(columns, values, strict=True))


def _shown(value: str, is_number: bool) -> str:
    """Write a value that was read back from the encoding, a number only as exactly as it is known.

    >>> _shown("21", True), _shown("0.123456789", True), _shown("Sun", True), _shown("0.123456789", False)
    ('21', '0.1235', 'Sun', '0.123456789')
    """
    if value.startswith(UNKNOWN):
        return RARE_LEVEL
    if not is_number:
        return value
    try:
        number = float(value)
    except ValueError:  # a weekday, or the missing part of a pair
        return value
    return value if number.is_integer() and abs(number) < 1e15 else f"{number:.4g}"
