"""The strongest contributions of each row, with the values that made them, as columns of Arrow.

Shape suffixes: N rows, F source columns, L labels, K reasons.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from dkan_core.data.source.column_types import is_number
from dkan_core.data.source.times import in_seconds
from dkan_core.explanation.additive import CROSS, AdditiveExplainer
from dkan_core.explanation.columns import source_columns, sparse_columns
from dkan_core.explanation.contributions import explainer_of
from dkan_core.explanation.grid import written_value
from dkan_core.explanation.ids import row_texts
from dkan_core.model.saved_model import SavedModel

REASON = pa.struct([("column", pa.string()), ("value", pa.string()), ("log_odds", pa.float32())])
"""``Reason`` in Arrow."""

BASELINE = b"dkan.baseline_log_odds"
"""Key of an output file's metadata: the log-odds by label that contributions start from, as JSON."""


# Below this, float64 holds whole numbers exactly.
WHOLE_NUMBERS = float(2**53)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A column, its value in a row, and what it adds to the row's log-odds."""

    column: str
    value: str | None
    """As text; None where it is missing."""

    log_odds: float

    @property
    def text(self) -> str:
        """The column with its value, as a person would write them."""
        return f"{self.column} = {self.value}" if self.value is not None else f"{self.column} is missing"


def reasons_column(label: str) -> str:
    """Return what the column of a label's reasons is called, beside the label itself."""
    return f"{label}_reasons"


class ReasonFinder:
    """Finds the columns that moved the log-odds of rows the most.

    Args:
        saved: The model.
        device: Where to compute.
        label: The one label to explain. Default: all.

    Raises:
        DataError: The model does not hold the distribution of its training data.
    """

    def __init__(self, saved: SavedModel, device: torch.device, label: str | None = None) -> None:
        self.labels = saved.config.labels if label is None else (label,)
        self._preprocessor = saved.preprocessor
        indices = [saved.config.labels.index(name) for name in self.labels]
        self._explainer = explainer_of(saved.module, saved.preprocessor, device, indices)
        self._sparse = sparse_columns(saved.preprocessor)
        columns = source_columns(saved.preprocessor)
        self._calendar = {column.name: column for column in columns if column.is_calendar}
        self._names = pa.array([CROSS.join(columns) for columns in self._explainer.sources])

    def of_label(self, label: str) -> Self:
        """Return a finder for one of its labels."""
        narrowed = copy.copy(self)
        narrowed.labels = (label,)
        narrowed._explainer = self._explainer.of_labels([self.labels.index(label)])
        return narrowed

    @property
    def columns(self) -> list[str]:
        """Names of all columns that the model reads, and of its pairs of columns where it is additive."""
        names: list[str] = self._names.to_pylist()
        return names

    @property
    def part(self) -> str:
        """What a contribution belongs to: a "column", or in an additive model, which also has pairs, a "term"."""
        return "term" if isinstance(self._explainer, AdditiveExplainer) else "column"

    @property
    def fields(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of the columns that ``find`` returns."""
        return [(reasons_column(label), pa.list_(REASON)) for label in self.labels]

    @property
    def baseline(self) -> dict[str, float]:
        """By label, the starting point of contributions: mean log-odds over background rows, or the intercept."""
        return dict(zip(self.labels, self._explainer.baseline.tolist(), strict=True))

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """Description in a file of reasons."""
        return {BASELINE: json.dumps(self.baseline).encode()}

    def find(
        self, rows: pa.RecordBatch | pa.Table, count: int, where: str, written: pa.Table | None = None
    ) -> list[pa.ListArray]:
        """Return each label's reasons, the strongest of a row first.

        Args:
            rows: At least the columns that the model reads.
            count: K, reasons per row; all columns where there are no more.
            where: The rows, as messages should call them.
            written: The texts to show for their values, by feature. Default: the values as text.
        """
        arrays = self._preprocessor.transform(rows, where)
        found_NFL, added_NSL = self._explainer.explain_ids(arrays)
        shared = self._explainer.sources[: len(self._explainer.sources) - len(self._sparse)]

        def text_of(name: str) -> pa.Array:
            return self._text_of(rows, name, where) if written is None else written[name].combine_chunks()

        texts = [_joined([text_of(name) for name in columns]) for columns in shared]
        strongest = []
        for found_NF, added_NS in zip(np.moveaxis(found_NFL, 2, 0), np.moveaxis(added_NSL, 2, 0), strict=True):
            of_ids = [pa.array(row_texts(column, arrays["sparse"], added_NS), pa.string()) for column in self._sparse]
            strongest.append(self._strongest(found_NF, [*texts, *of_ids], count))
        return strongest

    def _text_of(self, rows: pa.RecordBatch | pa.Table, name: str, where: str) -> pa.Array:
        """Return a column's values as text: weekdays by their names, and times, which prepared rows have in seconds."""
        values = self._preprocessor.column_of(rows, name, where)
        column = self._calendar.get(name)
        if column is None or not is_number(values.type):
            return value_texts(values)
        texts = (None if value is None else written_value(column, value) for value in values.to_pylist())
        return pa.array(texts, pa.string())

    def _strongest(self, found_NF: npt.NDArray[np.float32], texts: Sequence[pa.Array], count: int) -> pa.ListArray:
        # A stable sort: equal contributions keep the order of columns on every machine.
        order_NK = np.argsort(-np.abs(found_NF), axis=1, kind="stable")[:, :count]
        rows, reasons_per_row = order_NK.shape
        cells = (order_NK * rows + np.arange(rows)[:, None]).ravel()
        reasons = pa.StructArray.from_arrays(
            [
                self._names.take(pa.array(order_NK.ravel())),
                pa.chunked_array(texts).take(pa.array(cells)).combine_chunks(),
                pa.array(np.take_along_axis(found_NF, order_NK, axis=1).ravel()),
            ],
            fields=[*REASON],
        )
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * reasons_per_row, pa.int32()), reasons)


def _joined(texts: Sequence[pa.Array]) -> pa.Array:
    """Return the values of a column, or those of a pair with a cross between them."""
    if len(texts) == 1:
        return texts[0]
    return pc.binary_join_element_wise(*(text.fill_null("missing") for text in texts), CROSS)


def value_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values of a column as text, null where they are missing, as NaN and infinity are.

    Durations are in seconds, as the model reads them, and midnight is the date alone, as in explanations.
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    plain = whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole
    plain = in_seconds(plain) if pa.types.is_duration(plain.type) else plain
    texts = plain.cast(pa.string())
    if pa.types.is_timestamp(plain.type) or pa.types.is_time(plain.type):
        # Removes zero fractions of seconds, which stand before the time zone.
        texts = pc.replace_substring_regex(texts, r"\.0+(Z|[+-]\d+)?$", r"\1")
        # Midnight is left out, as elsewhere: a server has timestamps where a file has dates.
        texts = pc.replace_substring_regex(texts, " 00:00:00$", "")
    if not pa.types.is_floating(plain.type):
        return texts
    # Whole numbers are written without an exponent, like integers.
    numbers = plain.cast(pa.float64())
    is_whole = pc.and_(pc.equal(pc.round(numbers), numbers), pc.less(pc.abs(numbers), WHOLE_NUMBERS))
    whole_texts = pc.if_else(is_whole, numbers, 0.0).cast(pa.int64()).cast(pa.string())
    return pc.if_else(pc.is_finite(plain), pc.if_else(is_whole, whole_texts, texts), None)
