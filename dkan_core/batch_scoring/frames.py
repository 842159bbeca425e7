"""Scores of a frame in memory, as a frame of the same kind."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dkan_core.data.encoding.bulk import BulkEncoder
from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.source.column_types import column_types
from dkan_core.data.source.frames import cast_columns, column_names, frame_table, without_empty_types
from dkan_core.errors import DataError
from dkan_core.evaluation.drift.unseen import UnseenValues
from dkan_core.explanation.reasons import ReasonFinder
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.output_columns import check_no_clash, probability_fields
from dkan_core.scoring.probabilities import SCORING_ROWS, check_probabilities, score
from dkan_core.utils.messages import hint
from dkan_core.utils.torch_resources import best_device

# The name of the frame in messages.
FRAME = "the frame"

logger = logging.getLogger(__name__)


def score_frame(saved: SavedModel, frame: Any, columns: Sequence[str], reasons: int) -> Any:
    """Return the scores of a frame's rows in their order, with the index of a pandas ``DataFrame``.

    Args:
        saved: The model.
        frame: pandas, polars or Arrow; columns are found by name.
        columns: Columns to pass through.
        reasons: How many reasons to add for each row.

    Raises:
        DataError: A column is missing or of another kind than in training.
    """
    predicted = probability_fields(saved.config.labels)
    device = best_device()
    saved.module.to(device)
    finder = ReasonFinder(saved, device) if reasons else None
    names, reasons_fields = [field.name for field in predicted], finder.fields if finder else []
    check_no_clash(columns, names, "the prediction has that name")
    check_no_clash([*columns, *names], dict(reasons_fields), "the reasons have that name")
    schema = pa.schema([*predicted, *reasons_fields])
    table = _read(saved, frame, columns)
    parts, unseen, encoder = [], UnseenValues(saved.preprocessor), BulkEncoder(saved.preprocessor)
    for start in range(0, len(table), SCORING_ROWS):
        rows = table.slice(start, SCORING_ROWS)
        arrays = encoder.transform(rows, FRAME)
        unseen.count(arrays)
        found_NL = score(saved.module, arrays, device)
        check_probabilities(found_NL, saved.config.labels, FRAME, start)
        why = finder.find(rows, reasons, FRAME) if finder else []
        parts.append(pa.table([*map(pa.array, found_NL.T), *why], schema=schema))
    for text in unseen.warnings():
        logger.warning("%s: %s", FRAME, text)
    return _like(frame, columns, pa.concat_tables(parts) if parts else schema.empty_table())


def _read(saved: SavedModel, frame: Any, columns: Sequence[str]) -> pa.Table:
    """Return the columns that the model reads, after checking that those to pass through exist."""
    there = column_names(frame)
    for name in columns:
        if name not in there:
            meant = hint(str(name), map(str, there), [*map(str, there)], cutoff=0.6)
            raise DataError(
                f"{FRAME}: column {name!r} does not exist, so it cannot be copied to the output (columns); {meant}"
            )
    counts = Counter(there)
    read = [name for name in saved.preprocessor.columns if name in counts]
    # pandas would return all columns of a repeated name. Repeated names that are not read do no harm.
    for name in [*read, *columns]:
        if counts[name] > 1:
            raise DataError(f"{FRAME}: column {name!r} occurs {counts[name]} times; expected each name once")
    try:
        table = without_empty_types(frame_table(_select(frame, read), read, FRAME))
        types = column_types(FRAME, table.schema)
        check_features(saved.preprocessor, types, FRAME)
        return cast_columns(table, types, FRAME)
    except TypeError as error:
        raise DataError(str(error)) from error
    except pa.ArrowException as error:
        raise DataError(f"{FRAME}: a column holds values of several types ({error})") from error


def _select(frame: Any, names: list[str]) -> Any:
    return frame[names] if hasattr(frame, "iloc") else frame.select(names)


def _like(frame: Any, columns: Sequence[str], scores: pa.Table) -> Any:
    """Return scores as a frame of the given frame's kind, after the columns that are passed through."""
    if hasattr(frame, "iloc"):
        found = scores.to_pandas().set_index(frame.index)
        return frame[[*columns]].assign(**{name: found[name] for name in found})
    passed = pa.table(_select(frame, [*columns])) if columns else pa.table({})
    named = {name: table[name] for table in (passed, scores) for name in table.column_names}
    table = pa.table(named)
    return table if isinstance(frame, pa.Table | pa.RecordBatch) else type(frame)(table)
