"""The worst errors of a model: the highest-scored negatives and the lowest-scored positives, with their reasons.

Shape suffixes: N rows, L labels, E errors.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.evaluation.labelled_rows import EvaluationData, RawRows, RowCollector
from dkan_core.explanation.inverse_transform import inverse_transform, written_values
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


@dataclass(frozen=True, kw_only=True)
class WorstErrors:
    """The worst errors of one label."""

    source: str
    """The rows that the numbers count through."""

    false_positives: list[WorstError]
    false_negatives: list[WorstError]


@dataclass(frozen=True)
class _Rows:
    """Rows to explain: those of a file, or of a prepared split."""

    numbers_K: Int64
    rows: pa.Table
    """The columns that the model reads."""

    written: pa.Table | None = None
    """Their values as text, where they are read back from the encoding."""

    def of(self, numbers: Int64) -> "_Rows":
        """Return those with some of the numbers."""
        wanted_K = np.isin(self.numbers_K, numbers)
        mask = pa.array(wanted_K)
        written = None if self.written is None else self.written.filter(mask)
        return _Rows(self.numbers_K[wanted_K], self.rows.filter(mask), written)


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
    source = data.name if isinstance(data, RawRows) else f"the {data.name} split as it is stored"

    def explained(finder: ReasonFinder, index: int, high: Int64, low: Int64) -> WorstErrors:
        numbers = np.concatenate([high, low])
        of_label = finder.of_label(data.labels[index])
        reasons: dict[int, list[Reason]] = {}
        for part in parts:
            wanted = part.of(numbers)
            if len(wanted.numbers_K):
                (found,) = of_label.find(wanted.rows, REASONS, "rows to explain", wanted.written)
                each = ([Reason(**reason) for reason in row] for row in found.to_pylist())
                reasons |= zip(wanted.numbers_K.tolist(), each, strict=True)
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


def _rows(data: EvaluationData, numbers_E: Int64, encoding: Preprocessor) -> list[_Rows]:
    """Return the rows of some numbers, those of a file together.

    One table per file, as files may store a column as different types, such as times of two zones.
    """
    if not isinstance(data, RawRows):
        collector = RowCollector(numbers_E)
        for _ in collector.watch(data.batches(encoding)):
            pass
        decoded = inverse_transform(collector.rows(), encoding)
        return [_Rows(numbers_E, decoded, written_values(decoded, encoding))]
    first, parts = 0, []
    for path in data.paths:
        begin, found = first, []
        for batch in read_batches(open_file(path, folder_types=encoding.folder_types), encoding.columns):
            start, stop = np.searchsorted(numbers_E, [first, first + len(batch)])
            found.append(pa.table(batch).take(pa.array(numbers_E[start:stop] - first)))
            first += len(batch)
        start, stop = np.searchsorted(numbers_E, [begin, first])
        if start < stop:
            parts.append(_Rows(numbers_E[start:stop], pa.concat_tables(found)))
    return parts
