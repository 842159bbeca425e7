"""``predict``: raw Parquet to one file of probabilities, in this process."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.data.source.files import find_parquet
from dkan_core.errors import ConfigError, DataError, OutputError
from dkan_core.evaluation.prediction import best_device, output_batch, output_schema, scored_batches
from dkan_core.explanation.reasons import ReasonFinder
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.paths import is_remote, local_path
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.staging import staged_file

logger = logging.getLogger(__name__)


def predict(
    model: str | Path,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    columns: Sequence[str] = (),
    reasons: int = 0,
) -> int:
    """Score raw Parquet with the transform the model was trained with.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs in the order to be scored; a folder's files by path.
        out: Parquet file to write: ``LABEL_probability`` for each label, in input order.
        columns: Source columns to pass through.
        reasons: How many of the columns that moved a row's log-odds the most to add, as ``LABEL_reasons``: a list of
            column, value and log-odds, the strongest first. Default: 0, none.

    Returns:
        Rows scored.

    Raises:
        ConfigError: ``reasons`` is negative.
        DataError: A column is missing or of another kind than in training.
        OutputError: ``out`` cannot be written; nothing half-written is left.
    """
    if reasons < 0:
        raise ConfigError(f"reasons must be 0 or more, got {reasons}")
    chosen = [sources] if isinstance(sources, (str, Path)) else list(sources)
    paths = [path for source in chosen for path in find_parquet([source])]
    if not is_remote(out) and str(local_path(out).resolve()) in {str(Path(path).resolve()) for path in paths}:
        raise OutputError(f"{out}: is one of the sources; choose another file")
    with local_copy(model) as folder:
        saved = SavedModel(folder)
    columns = list(dict.fromkeys(columns))
    schema, rows = output_schema(saved, paths, columns)
    total = sum(rows)
    device = best_device()
    saved.module.to(device)
    finder = ReasonFinder(saved, device) if reasons else None
    written = schema if finder is None else _with_reasons(schema, finder)
    with (
        staged_file(out) as aside,
        progress("scoring", total, "rows") as advance,
        pq.ParquetWriter(aside, written) as writer,
    ):
        for path in paths:
            for batch, found_NL in scored_batches(saved, path, columns, device, advance):
                scored = output_batch(batch, found_NL, columns, schema)
                found = [] if finder is None else finder.find(batch, reasons, path)
                writer.write_batch(pa.record_batch([*scored.columns, *found], schema=written))
    logger.info("scored %d rows to %s", total, out)
    return total


def _with_reasons(schema: pa.Schema, finder: ReasonFinder) -> pa.Schema:
    clash = [name for name, _ in finder.fields if name in schema.names]
    if clash:
        raise DataError(f"column {clash[0]!r} cannot be passed through: the reasons have that name")
    for label, log_odds in finder.baseline.items():
        logger.info("the reasons of %s add to log-odds of %.4g, the mean over a background", label, log_odds)
    return pa.schema([*schema, *finder.fields], metadata=finder.metadata)
