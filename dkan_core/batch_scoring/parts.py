"""One part of a batch scoring: its files are scored one by one, and its rows counted for the end."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from dkan_core.batch_scoring.plan import (
    PlannedFile,
    ScoredFile,
    ScoringPlan,
    missing_files,
    open_plan,
    read_accepted,
)
from dkan_core.data.preparation.label_columns import positive_of_columns, with_binary_labels
from dkan_core.data.preparation.steps import label_values
from dkan_core.data.source.files import find_parquet, split_sources, stamp, whole_second
from dkan_core.errors import ConfigError, DataError
from dkan_core.evaluation.drift.counting import CountsSchema, DriftCounts, Reference, count_rows
from dkan_core.evaluation.drift.measures import Drift, measure_since_training
from dkan_core.evaluation.prediction import output_batch, output_schema, scored_batches
from dkan_core.model.model_folder import naming_swapped
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.hints import counted
from dkan_core.utils.progress import progress
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.shared_folder import SharedFolder
from dkan_core.utils.torch_resources import best_device

logger = logging.getLogger(__name__)


class PartRecord(Schema):
    """What a part leaves behind: its files, which are whole, and its counts."""

    files: list[ScoredFile]
    counts: CountsSchema


@dataclass
class Found:
    """What is found in scored rows: counts, and labels (N, L) with probabilities (N, L) where labels are there."""

    counts: DriftCounts = field(default_factory=DriftCounts)
    labels: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    probabilities: list[npt.NDArray[np.float32]] = field(default_factory=list)


def score_part(output_uri: str | Path, part: int) -> int:
    """Score the files of a part; a second call goes on with nothing to do, or after a kill writes the same files.

    Args:
        output_uri: Where the plan lies.
        part: Its number.

    Returns:
        The rows of its files; of all files if the scoring was accepted before.

    Raises:
        DataError: A source file is not what was planned.
        OutputError: ``output_uri`` cannot be written.
    """
    accepted = read_accepted(SharedFolder(output_uri))
    if accepted is not None:
        logger.info("%s was scored and accepted before", output_uri)
        return accepted.rows
    place, plan = open_plan(output_uri)
    if not 0 <= part < len(plan.parts):
        raise ConfigError(f"part must be from 0 to {len(plan.parts) - 1}, got {part}")
    files = [plan.files[index] for index in plan.parts[part]]
    rows = sum(file.rows for file in files)
    record = read_record(place, plan, part)
    # A bucket's lifecycle rule, or a person, may have removed scores since.
    if record is not None and not missing_files(place, record.files):
        logger.info("part %d of %d was scored before", part, len(plan.parts))
        return rows
    # The plan's own copy: all parts score with the model that was planned, whatever is published meanwhile.
    with local_copy(f"{place.uri}/{plan.model_folder}") as folder:
        saved = SavedModel(folder)
    found, written = Found(), []
    with progress("scoring", rows, "rows") as advance:
        for file in files:
            written.append(_score_file(place, plan, saved, file, found, advance))
    if plan.labels:
        with place.staged(f"{plan.record(part)}.safetensors") as aside:
            save_file(
                {"labels": np.concatenate(found.labels), "probabilities": np.concatenate(found.probabilities)}, aside
            )
    left = PartRecord(files=written, counts=CountsSchema.model_validate(found.counts.to_dict()))
    place.write_json(f"{plan.record(part)}.json", left.model_dump())
    logger.info("scored part %d of %d: %s", part, len(plan.parts), counted(rows, "row"))
    return rows


def _score_file(
    place: SharedFolder,
    plan: ScoringPlan,
    saved: SavedModel,
    file: PlannedFile,
    found: Found,
    on_rows: Callable[[int], None],
) -> ScoredFile:
    size, modified = stamp(file.source)
    if (size, whole_second(modified)) != (file.bytes, whole_second(file.modified)):
        # Parts that scored different states of a file would add up to metrics of no data at all.
        raise DataError(f"{file.source}: changed after the scoring was planned; plan it again")
    schema, _ = output_schema(saved, [file.source], plan.columns, plan.labels)
    with place.staged(file.output) as aside:
        with pq.ParquetWriter(aside, schema) as writer:
            for batch, found_NL in _counted(saved, file.source, plan.columns, plan.labels, found, on_rows):
                writer.write_batch(output_batch(batch, found_NL, plan.columns, schema))
        return ScoredFile(output=file.output, source=file.source, rows=file.rows, bytes=aside.stat().st_size)


def _counted(
    saved: SavedModel,
    path: str,
    columns: Sequence[str],
    labels: Sequence[str],
    found: Found,
    on_rows: Callable[[int], None],
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
    """Yield a file's rows and probabilities, and add to ``found`` what there is to find in them."""
    device = best_device()
    saved.module.to(device)
    reference = Reference.from_model(saved.preprocessor, saved.metrics)
    empty = np.empty((0, len(saved.config.labels)))
    # So that a part without a row can be put together with others, too.
    found.labels.append(empty.astype(np.uint8))
    found.probabilities.append(empty.astype(np.float32))
    for batch, found_NL in scored_batches(saved, path, [*columns, *labels], device, on_rows):
        found.counts.merge(count_rows(batch, found_NL, saved.config.labels, reference, path))
        if labels:
            positive = positive_of_columns(saved.config.positive, saved.config.labels, labels)
            found.labels.append(label_values(with_binary_labels(batch, labels, positive, path), labels))
            found.probabilities.append(found_NL)
        yield batch, found_NL


def read_record(place: SharedFolder, plan: ScoringPlan, part: int) -> PartRecord | None:
    """Return what a part left behind, or None where it is not through.

    Args:
        place: Where the scores go.
        plan: The plan.
        part: Number of the part.
    """
    name = f"{plan.record(part)}.json"
    text = place.read_text(name)
    return None if text is None else read_json(PartRecord, text, f"{place.uri}/{name}")


def measure_drift(model: str | Path, sources: str | Path | Sequence[str | Path]) -> Drift:
    """Measure how far raw Parquet, and its scores, are from what a model was trained with.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder, or a published model; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs.

    Returns:
        The shift of every column and score.

    Raises:
        DataError: The model cannot be read, or a column is missing or of another kind than in training.
    """
    with naming_swapped(split_sources(sources)):
        paths = find_parquet(split_sources(sources))
    return measure_files(model, paths)


def measure_files(model: str | Path, paths: Sequence[str]) -> Drift:
    """Measure the drift of files, which have been found; see ``measure_drift``."""
    with local_copy(model) as folder:
        saved = SavedModel(folder)
    _, rows = output_schema(saved, paths, ())
    if not any(rows):
        raise DataError(f"{paths[0]}: no rows in any source file")
    found = Found()
    with progress("scoring", sum(rows), "rows") as advance:
        for path in paths:
            for _ in _counted(saved, path, (), (), found, advance):
                pass
    return measure_since_training(found.counts, saved.preprocessor, saved.metrics)
