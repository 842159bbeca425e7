"""``predict``: raw Parquet to one file of probabilities, in this process."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import pyarrow as pa

from dkan_core.batch_scoring.frames import score_frame
from dkan_core.batch_scoring.scores_file import CSV, check_holds_reasons, check_scores_file, open_scores_file
from dkan_core.data.source.files import find_in_order, source_paths, takes_in
from dkan_core.data.source.frames import is_frame
from dkan_core.errors import ConfigError, OutputError
from dkan_core.evaluation.drift.unseen import UnseenValues
from dkan_core.explanation.reasons import ReasonFinder
from dkan_core.model.model_folder import naming_swapped
from dkan_core.model.saved_model import load_model
from dkan_core.scoring.output_columns import check_no_clash, check_sources, copied_folder_types, output_batch
from dkan_core.scoring.raw import scored_batches
from dkan_core.utils.messages import counted
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.outputs import check_file_name
from dkan_core.utils.storage.paths import filesystem, is_remote, local_path
from dkan_core.utils.storage.remote import check_file_writable
from dkan_core.utils.storage.staging import staged_file
from dkan_core.utils.torch_resources import best_device

logger = logging.getLogger(__name__)


class Frame(Protocol):
    """Rows in memory with columns by name: of pandas, polars or Arrow."""

    @property
    def columns(self) -> Any: ...


FrameT = TypeVar("FrameT", bound=Frame)

Sources = str | Path | Sequence[str | Path]


@overload
def predict(
    model: str | Path,
    sources: Sources,
    out: str | Path,
    *,
    columns: Sequence[str] = (),
    reasons: int = 0,
    overwrite: bool = False,
) -> int: ...


@overload
def predict(model: str | Path, sources: FrameT, *, columns: Sequence[str] = (), reasons: int = 0) -> FrameT: ...


def predict(
    model: str | Path,
    sources: Any,
    out: str | Path | None = None,
    *,
    columns: Sequence[str] = (),
    reasons: int = 0,
    overwrite: bool = False,
) -> Any:
    """Score raw Parquet, or a frame in memory, with the transform the model was trained with.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs in the order to be scored; a folder's files are sorted by path,
            and a file that is named twice is scored once. Or a frame of pandas, polars or Arrow, whose columns are
            found by name.
        out: File to write: ``LABEL_probability`` for each label, in input order. CSV if its name ends in .csv, else
            Parquet. None for a frame.
        columns: Source columns to pass through.
        reasons: How many of the columns that moved a row's log-odds the most to add, as ``LABEL_reasons``: a list of
            column, value and log-odds, the strongest first. Default: 0, none.
        overwrite: Whether an earlier file of scores may be replaced.

    Returns:
        How many rows were scored; for a frame, its scores, as a frame of the same kind in the same order.

    Raises:
        ConfigError: ``reasons`` is negative; or ``out`` is given for a frame, or missing for Parquet.
        DataError: A column is missing or of another kind than in training.
        OutputError: ``out`` cannot be written; nothing half-written is left.
    """
    if reasons < 0:
        raise ConfigError(f"reasons must be 0 or more, got {reasons}")
    columns = list(dict.fromkeys(columns))
    if is_frame(sources):
        if out is not None:
            raise ConfigError(f"out: {out}: the scores of a frame are returned; leave it out, or score Parquet")
        return score_frame(load_model(model), sources, columns, reasons)
    chosen = source_paths(sources)
    if out is None:
        raise ConfigError("out is not given: name the file for the scores of Parquet; those of a frame are returned")
    return _predict_file(model, chosen, out, columns, reasons, overwrite=overwrite)


def _predict_file(
    model: str | Path, chosen: list[str], out: str | Path, columns: list[str], reasons: int, *, overwrite: bool
) -> int:
    check_file_name(out)
    with naming_swapped(chosen):
        paths = find_in_order(chosen)
    _check_is_no_source(out, chosen, paths)
    saved = load_model(model)
    check = functools.partial(check_scores_file, out, saved.config.labels, overwrite=overwrite)
    check()
    check_file_writable(out)
    if reasons:
        check_holds_reasons(out)
    folder_types = copied_folder_types(saved, paths)
    schema, rows = check_sources(saved, paths, columns, folder_types=folder_types)
    total = sum(rows)
    device = best_device()
    saved.module.to(device)
    finder = ReasonFinder(saved, device) if reasons else None
    unseen = UnseenValues(saved.preprocessor)
    written = schema if finder is None else _with_reasons(schema, finder)
    with (
        staged_file(out, check) as aside,
        progress("scoring", total, "rows") as advance,
        open_scores_file(out, aside, written) as writer,
    ):
        for path in paths:
            for batch, found_NL in scored_batches(saved, path, columns, device, unseen.count, folder_types):
                scored = output_batch(batch, found_NL, columns, schema)
                found = [] if finder is None else finder.find(batch, reasons, path)
                writer.write_batch(pa.record_batch([*scored.columns, *found], schema=written))
                advance(len(batch))
    for text in unseen.warnings():
        logger.warning("%s", text)
    logger.info("scored %s to %s", counted(total, "row"), out)
    return total


def _check_is_no_source(out: str | Path, sources: Sequence[str], paths: Sequence[str]) -> None:
    """Raise OutputError where the scores would replace a source file, or be one of the sources of the next call."""
    target = _identity(out)
    if target in map(_identity, paths):
        raise OutputError(f"{out}: is one of the sources; choose another file")
    folder, _, name = target.rpartition("/")
    named = next((source for source in sources if takes_in(source, folder or "/", [name])), None)
    if named is not None and not name.endswith(CSV):
        raise OutputError(f"{out}: lies in a folder of sources ({named}); choose a file outside of it")


def _identity(file: str | Path) -> str:
    """Return a canonical name, equal for all spellings of a path or URI."""
    if not is_remote(file):
        return str(local_path(file).resolve())
    fs, path = filesystem(str(file))
    return str(fs.unstrip_protocol(path))


def _with_reasons(schema: pa.Schema, finder: ReasonFinder) -> pa.Schema:
    check_no_clash(schema.names, dict(finder.fields), "the reasons have that name")
    for label, log_odds in finder.baseline.items():
        baseline = "the intercept" if finder.part == "term" else "the mean over a background"
        logger.info("the reasons of %s add to log-odds of %.4g, %s", label, log_odds, baseline)
    return pa.schema([*schema, *finder.fields], metadata=finder.metadata)
