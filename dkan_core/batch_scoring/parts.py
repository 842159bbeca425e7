"""One part of a batch scoring: its files are scored one by one, and its rows counted for the end."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
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
from dkan_core.data.source.files import stamp, whole_second
from dkan_core.errors import ConfigError, DataError
from dkan_core.evaluation.drift.counting import DriftCountsSchema
from dkan_core.evaluation.drift.scored_files import ScoredRows, counted_batches
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.scoring.output_columns import copied_folder_types, output_batch
from dkan_core.utils.messages import counted
from dkan_core.utils.progress import progress
from dkan_core.utils.schemas import Schema
from dkan_core.utils.storage.shared_folder import SharedFolder

logger = logging.getLogger(__name__)


class PartRecord(Schema):
    """Result of a part: its files, which are complete, and its counts."""

    files: list[ScoredFile]
    counts: DriftCountsSchema


def score_part(output_uri: str | Path, part: int) -> int:
    """Score the files of a part; a second call has nothing to do, or after a kill writes the same files.

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
    output, plan = open_plan(output_uri)
    if not 0 <= part < len(plan.parts):
        raise ConfigError(f"part must be from 0 to {len(plan.parts) - 1}, got {part}")
    files = [plan.files[index] for index in plan.parts[part]]
    rows = sum(file.rows for file in files)
    record = read_record(output, plan, part)
    # Scores may have been removed since, for example by a bucket's lifecycle rule.
    if record is not None and not missing_files(output, record.files):
        logger.info("part %d of %d was scored before", part, len(plan.parts))
        return rows
    # The plan's own copy, so that all parts use the planned model even if another one is published meanwhile.
    saved = load_model(f"{output.uri}/{plan.model_folder}")
    found, written = ScoredRows(), []
    folder_types = copied_folder_types(saved, [file.source for file in plan.files])
    with progress("scoring", rows, "rows") as advance:
        for file in files:
            written.append(_score_file(output, plan, saved, file, folder_types, found, advance))
    if plan.labels:
        with output.staged(f"{plan.record(part)}.safetensors") as aside:
            save_file(
                {"labels": np.concatenate(found.labels), "probabilities": np.concatenate(found.probabilities)}, aside
            )
    left = PartRecord(files=written, counts=DriftCountsSchema.model_validate(found.counts.to_dict()))
    output.write_json(f"{plan.record(part)}.json", left.model_dump())
    logger.info("scored part %d of %d: %s", part, len(plan.parts), counted(rows, "row"))
    return rows


def _score_file(
    output: SharedFolder,
    plan: ScoringPlan,
    saved: SavedModel,
    file: PlannedFile,
    folder_types: Mapping[str, str],
    found: ScoredRows,
    on_rows: Callable[[int], None],
) -> ScoredFile:
    size, modified = stamp(file.source)
    if (size, whole_second(modified)) != (file.bytes, whole_second(file.modified)):
        # Metrics over parts that scored different versions of the sources would belong to no data set.
        raise DataError(f"{file.source}: changed after the scoring was planned; plan it again")
    columns, labels, schema = plan.columns, plan.labels, plan.scores_schema
    with output.staged(file.output) as aside:
        with pq.ParquetWriter(aside, schema) as writer:
            batches = counted_batches(saved, file.source, columns, labels, found, folder_types)
            for batch, found_NL in batches:
                writer.write_batch(output_batch(batch, found_NL, columns, schema))
                on_rows(len(batch))
        return ScoredFile(output=file.output, source=file.source, rows=file.rows, bytes=aside.stat().st_size)


def read_record(output: SharedFolder, plan: ScoringPlan, part: int) -> PartRecord | None:
    """Return the record of a part, or None if the part is not finished."""
    return output.read(PartRecord, f"{plan.record(part)}.json")
