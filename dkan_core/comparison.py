"""Two models on the same rows: the one that is evaluated, and the one that was best before it.

The earlier model was trained on other data, as a rule, and so with another encoding. Then values are read back from the
prepared rows, as exact as these are (see ``explanation.columns.read_values``), and encoded as it knows them.

Shape suffixes: N rows, L labels.
"""

import html
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core import page
from dkan_core.data.encoding import FIRST_CODE, Preprocessor
from dkan_core.data.loader import RowReader, all_batches
from dkan_core.data.manifest import PreparedData
from dkan_core.data.shards import Arrays
from dkan_core.errors import DataError
from dkan_core.explanation.columns import read_codes, read_values, source_columns
from dkan_core.metrics import compute_metrics
from dkan_core.model.saved_model import CONFIG, SavedModel
from dkan_core.prediction import SCORING_ROWS, best_device, log_odds, to_probability
from dkan_core.storage import local_copy, read_if_there

UNKNOWN = "\N{REPLACEMENT CHARACTER}dkan: not in the vocabulary"
"""Stands for a category that was rare or unseen: no model knows it."""

SHOWN = {
    "average_precision": "Average precision",
    "roc_auc": "ROC AUC",
    "log_loss": "Log loss",
    "brier": "Brier score",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What an earlier model scores on the same rows."""

    model: str
    """Where it lies."""

    is_there: bool = True
    """Whether there is one."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """As of ``compute_metrics``; empty where it could not be scored."""

    why_not: str = ""
    """Why it could not be scored."""


def compare(previous: str | Path, manifest: PreparedData, reader: RowReader) -> Comparison:
    """Score a split with an earlier model.

    One that is not there yet, or that knows other labels or columns, is said to be so in the result: no reason to fail.

    Args:
        previous: Folder or URI of a model.
        manifest: Of the prepared data.
        reader: Of the split.
    """
    place = str(previous).rstrip("/")
    if read_if_there(f"{place}/{CONFIG}") is None and read_if_there(f"{place}/model/{CONFIG}") is None:
        logger.info("%s: there is no model yet to compare with", place)
        return Comparison(model=place, is_there=False, why_not="there is no model yet")
    try:
        with local_copy(place) as folder:
            saved = SavedModel(folder)
        if list(saved.config.labels) != manifest.labels:
            return _not_compared(place, f"it was trained for the labels {', '.join(saved.config.labels)}")
        labels_NL, probabilities_NL = _score(saved, manifest.preprocessor, reader)
    except DataError as error:
        return _not_compared(place, str(error))
    return Comparison(model=place, metrics=compute_metrics(labels_NL, probabilities_NL, manifest.labels))


def _not_compared(place: str, why_not: str) -> Comparison:
    logger.warning("not compared with %s: %s", place, why_not)
    return Comparison(model=place, why_not=why_not)


def _score(
    saved: SavedModel, encoding: Preprocessor, reader: RowReader
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    device = best_device()
    model, same = saved.module.to(device), saved.preprocessor == encoding
    labels, scored = [], []
    for arrays in all_batches(reader, SCORING_ROWS):
        inputs = arrays if same else saved.preprocessor.transform(read_back(arrays, encoding), "the prepared data")
        labels.append(arrays["labels"])
        scored.append(log_odds(model, inputs, device).cpu().numpy())
    return np.concatenate(labels), to_probability(np.concatenate(scored))


def read_back(arrays: Arrays, encoding: Preprocessor) -> pa.Table:
    """Return the source columns of prepared rows; values that were not seen in training, and rare ones, are unknown.

    Shape:
        - Input: ``numeric`` (N, F), ``categorical`` (N, C)
        - Output: N rows
    """
    columns: dict[str, pa.Array] = {}
    for column in source_columns(encoding):
        if column.scored is not None:
            columns[column.name] = pa.array(read_values(column, arrays), from_pandas=True)
        elif column.coded is not None:
            names = [UNKNOWN, None, *column.coded.vocabulary]  # in the order of the codes: unseen, missing, known ones
            assert names.index(None) + 1 == FIRST_CODE
            columns[column.name] = pa.array(names, pa.string()).take(pa.array(read_codes(column, arrays)))
    return pa.table(columns)


def comparison_section(metrics: Mapping[str, Any], comparison: Comparison) -> str:
    """Return the section of a report that holds a model's metrics against those of the earlier one, as HTML."""
    title = "<h2>Against the previous best model</h2>"
    if not comparison.metrics:
        return title + page.note(f"{comparison.model}: not compared, {comparison.why_not}.")
    rows = [_row(name, metrics[key], comparison.metrics[key]) for key, name in SHOWN.items()]
    heads = ("", "this model", "previous", "difference")
    return title + page.note(f"The same rows, scored with {comparison.model}.") + page.table(heads, rows)


def _row(name: str, ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        cells = ["undefined" if value is None else f"{value:.4f}" for value in (ours, theirs)] + [""]
    else:
        cells = [f"{ours:.4f}", f"{theirs:.4f}", f"{ours - theirs:+.4f}"]
    return f"<tr><td>{html.escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
