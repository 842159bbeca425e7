"""``prepare``: raw Parquet to shuffled, encoded shards in two passes."""

import logging
from collections.abc import Sequence
from pathlib import Path

from dkan_core.config import PrepareConfig
from dkan_core.data.encoding.like import read_reference
from dkan_core.data.format.manifest import MANIFEST, OUTPUTS, PreparedData
from dkan_core.data.preparation.partition import whole_files
from dkan_core.data.preparation.reuse import earlier_result, is_reusable
from dkan_core.data.preparation.statistics import collect_statistics, merge_counts
from dkan_core.data.preparation.steps import PreparationTask, describe, describe_files, fit, log_unseen, spill_rows
from dkan_core.data.source.columns import Footer, assign_roles, read_sources
from dkan_core.errors import ConfigError
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.files import write_json
from dkan_core.utils.storage.shared_folder import SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted, staged_folder

logger = logging.getLogger(__name__)


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    config: PrepareConfig,
    *,
    overwrite: bool = False,
    reuse: bool = False,
    workers: int = 0,
) -> PreparedData:
    """Turn Parquet files into a prepared data set.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        out: Folder or URI for ``manifest.json`` and the shards; absent or empty, or an earlier result with overwrite.
        config: Roles of the columns, split rule, storage type and seed.
        overwrite: Whether an earlier result in ``out`` may be replaced.
        reuse: Whether an earlier result of the same sources and settings may stay as it is.
        workers: How many parts of the rows to work on at once, in a way that continues after a kill when it is called
            again, and reuses an earlier result; the bytes are the same. 0 prepares all rows in one go.

    Returns:
        The manifest that lies there.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
        OutputError: ``out`` cannot take the result. Nothing half-written is left.
    """
    if workers < 0:
        raise ConfigError(f"workers must be at least 0, got {workers}")
    if workers:
        from dkan_core.data.preparation.workers import prepare_in_parts

        return prepare_in_parts(sources, out, config, workers=workers, overwrite=overwrite)
    if reuse:
        # Else a whole result that was about to be moved in would be prepared a second time.
        finish_interrupted(out, OUTPUTS)
        earlier = earlier_result(SharedFolder(out))
        if earlier is not None and is_reusable(find_task(sources, config)[0], earlier):
            logger.info("%s: the same sources and settings were prepared before", out)
            return earlier
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite) as folder:
        task, footers = find_task(sources, config)
        fragments = whole_files(task.files, footers)
        with progress("reading", task.rows, "rows") as advance:
            counts, sample = collect_statistics(fragments, task.schema, task.config, advance)
        counts = merge_counts([counts], task.schema)
        preprocessor = fit(task, counts, sample)
        del sample  # not needed any more, and large
        with progress("writing", task.rows, "rows") as advance:
            writers, unseen = spill_rows(folder, task, fragments, preprocessor, counts, advance)
        shards = {split: list(writer.finish()) for split, writer in writers.items()}
        prepared = describe(task, preprocessor, counts, shards)
        write_json(folder / MANIFEST, prepared.to_dict())
    log_unseen(unseen, task.rows)
    log_prepared(out, prepared)
    return prepared


def find_task(
    sources: str | Path | Sequence[str | Path], config: PrepareConfig
) -> tuple[PreparationTask, list[Footer]]:
    """Read every source file's footer and give each column its role.

    Returns:
        What is to be prepared, and each file's footer.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
    """
    chosen = [sources] if isinstance(sources, (str, Path)) else list(sources)
    reference = None if config.like is None else read_reference(config.like)
    if reference is not None:
        config = reference.complete(config)
    files, types, footers = read_sources([str(source) for source in chosen])
    where = describe_files(files)
    if reference is None:
        return PreparationTask(config=config, files=files, schema=assign_roles(types, config, where)), footers
    schema = reference.assign_roles(types, config, where)
    return PreparationTask(config=config, files=files, schema=schema, encoding=reference.preprocessor), footers


def log_prepared(out: str | Path, prepared: PreparedData) -> None:
    """Log how many rows each split has."""
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in prepared.splits.items())
    logger.info("prepared %s: %s rows", out, rows)
