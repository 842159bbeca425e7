"""``prepare``: raw Parquet to shuffled, encoded shards in two passes."""

import logging
from collections.abc import Sequence
from pathlib import Path

from dkan_core.config import PrepareConfig
from dkan_core.data.format.manifest import CONTENTS, MANIFEST, OUTPUTS, PreparedData
from dkan_core.data.preparation.reuse import earlier_result, is_reusable
from dkan_core.data.preparation.statistics import merge_counts
from dkan_core.data.preparation.steps import build_manifest, fit, log_prepared, log_unseen, spill_rows, survey_rows
from dkan_core.data.preparation.task import find_task, with_time_bounds
from dkan_core.data.preparation.workers import prepare_in_parts
from dkan_core.data.source.partition import whole_files
from dkan_core.errors import ConfigError
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.files import write_json
from dkan_core.utils.storage.shared_folder import SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted, staged_folder

# From 20 GB of float32 on, the data are prepared in parts, so that a killed preparation can continue. Below, starting
# again costs a few minutes of one core, which is less than the overhead of parts in every run.
RESUMABLE_VALUES = 5_000_000_000

logger = logging.getLogger(__name__)


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    config: PrepareConfig,
    *,
    overwrite: bool = False,
    reuse: bool = False,
    workers: int | None = None,
) -> PreparedData:
    """Turn Parquet files into a prepared data set.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        out: Folder or URI for ``manifest.json`` and the shards; absent or empty, or an earlier result with overwrite.
        config: Roles of the columns, split rule, storage type and seed.
        overwrite: Whether an earlier result in ``out`` may be replaced.
        reuse: Whether an earlier result of the same sources and settings may stay as it is.
        workers: How many parts of the rows to prepare at once. With 1 or more, a repeated call continues one that was
            killed, and reuses an earlier result; 0 prepares all rows in one pass. The bytes are the same, and all cores
            are used either way. Default: 0, or 1 if rows times features are at least ``RESUMABLE_VALUES``.

    Returns:
        The manifest of the prepared data.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
        OutputError: ``out`` cannot take the result. Nothing half-written is left.
    """
    if workers is not None and workers < 0:
        raise ConfigError(f"workers must be at least 0, got {workers}")
    task = find_task(sources, config)
    if reuse:
        # Otherwise a complete result that was still to be moved into place would be prepared again.
        finish_interrupted(out, OUTPUTS)
        earlier = earlier_result(SharedFolder(out))
        if earlier is not None and is_reusable(task, earlier):
            logger.info("%s: the same sources and settings were prepared before", out)
            return earlier
    if workers is None:
        workers = int(task.rows * len(task.roles.features) >= RESUMABLE_VALUES)
    if workers:
        return prepare_in_parts(task, out, workers=workers, overwrite=overwrite)
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite, contents=CONTENTS) as folder:
        fragments = whole_files(task.files, task.footers)
        task = with_time_bounds(task, fragments)
        with progress("reading", task.rows, "rows") as advance:
            statistics = survey_rows(task, fragments, advance)
        counts = merge_counts([statistics.counts], task.roles)
        preprocessor = fit(task, statistics._replace(counts=counts))
        del statistics  # not needed any more, and large
        with progress("writing", task.rows, "rows") as advance:
            writers, unseen = spill_rows(folder, task, fragments, preprocessor, counts, advance)
        shards = {split: writer.finish() for split, writer in writers.items()}
        prepared = build_manifest(task, preprocessor, counts, shards)
        write_json(folder / MANIFEST, prepared.to_dict())
    log_unseen(unseen, task.rows)
    log_prepared(out, prepared)
    return prepared
