"""``prepare``: raw Parquet to shuffled, encoded shards in two passes."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from dkan_core.config import PrepareConfig, check_config
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.format.manifest import CONTENTS, MANIFEST, OUTPUTS, PreparedData
from dkan_core.data.format.shard_writer import SpillReader
from dkan_core.data.preparation.reference import read_reference
from dkan_core.data.preparation.reuse import earlier_result, is_reusable
from dkan_core.data.preparation.statistics import collect_statistics, merge_counts, sample_limit
from dkan_core.data.preparation.steps import PreparationTask, describe, describe_files, fit, log_unseen, spill_rows
from dkan_core.data.source.columns import Footer, read_sources
from dkan_core.data.source.files import source_paths
from dkan_core.data.source.folders import FOLDER_TEXT, folder_values
from dkan_core.data.source.partition import Fragment, whole_files
from dkan_core.data.source.roles import Schema, assign_roles, split_keys, wanted_columns
from dkan_core.data.source.split_hints import find_split_hints, split_warnings
from dkan_core.data.source.time_split import find_time_bounds
from dkan_core.errors import ConfigError
from dkan_core.utils.hints import few_rows
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.files import write_json
from dkan_core.utils.storage.shared_folder import SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted, staged_folder

# From 20 GB of float32 on, a preparation that was killed continues. Below, a few minutes of one core are lost, which is
# less than parts would cost all those that are not killed.
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
    task, footers = find_task(sources, config)
    if reuse:
        # Else a whole result that was about to be moved in would be prepared a second time.
        finish_interrupted(out, OUTPUTS)
        earlier = earlier_result(SharedFolder(out))
        if earlier is not None and is_reusable(task, earlier):
            logger.info("%s: the same sources and settings were prepared before", out)
            return earlier
    if workers is None:
        workers = int(task.rows * len(task.schema.features) >= RESUMABLE_VALUES)
    if workers:
        from dkan_core.data.preparation.workers import prepare_in_parts

        return prepare_in_parts(task, footers, out, workers=workers, overwrite=overwrite)
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite, contents=CONTENTS) as folder:
        fragments = whole_files(task.files, footers)
        task = with_time_bounds(task, fragments)
        with progress("reading", task.rows, "rows") as advance:
            limit = sample_limit(task.rows, task.schema, task.config)
            values = ValueCounts(*task.counted_columns)
            statistics = collect_statistics(fragments, task.schema, task.config, advance, task.bounds, limit, values)
        counts = merge_counts([statistics.counts], task.schema)
        preprocessor = fit(task, statistics._replace(counts=counts))
        del statistics  # not needed any more, and large
        with progress("writing", task.rows, "rows") as advance:
            writers, unseen = spill_rows(folder, task, fragments, preprocessor, counts, advance)
        spills = SpillReader()
        shards = {split: list(writer.finish(spills)) for split, writer in writers.items()}
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
        ConfigError: A setting is wrong.
        DataError: The sources are not what was expected; the message names file and column.
    """
    check_config(PrepareConfig, config)
    chosen = source_paths(sources)
    if config.extend and config.like is None:
        raise ConfigError("extend: there is nothing to extend; name a model or prepared data with --like")
    reference = None if config.like is None else read_reference(config.like)
    if reference is not None:
        config = reference.complete(config)
    found = read_sources(chosen, reference.wanted(config) if reference else wanted_columns(config))
    files, types, footers = found.files, found.types, found.footers
    where = describe_files(files)
    hints = {}
    if config.splits_at_random:
        taken = {*config.label, *filter(None, [config.weight]), *found.partial}
        hints = find_split_hints(types, taken, files[0].path)
    in_folders = [name for name in folder_values(files[0].path) if name in types]
    folders = {name: str(types[name]) for name in in_folders}
    task = partial(PreparationTask, config=config, files=files, grouped=config.has_groups, hints=hints)
    if reference is None:
        schema = replace(assign_roles(types, config, where), folders=folders, common=found.common)
        return task(schema=_with_keys(schema, types, config)), footers
    known = {name: kind for name, kind in reference.preprocessor.folder_types.items() if name in folders}
    types |= dict.fromkeys(known, FOLDER_TEXT)
    schema = replace(reference.assign_roles(types, config, where), folders={**folders, **known}, common=found.common)
    return task(schema=_with_keys(schema, types, config), encoding=reference.preprocessor), footers


def _with_keys(schema: Schema, types: dict[str, pa.DataType], config: PrepareConfig) -> Schema:
    return replace(schema, **split_keys(types, config, schema.features))


def with_time_bounds(task: PreparationTask, fragments: Sequence[Fragment]) -> PreparationTask:
    """Return the task with where valid and test begin, if rows are split by time.

    Args:
        task: What is to be prepared.
        fragments: All rows.

    Raises:
        DataError: A row has no time, or there are too few different ones.
    """
    column = task.config.split_by_time
    if column is None:
        return task
    with progress("reading times", task.rows, "rows") as advance:
        schema = task.schema
        bounds = find_time_bounds(fragments, column, task.config.split_percent, advance, schema.folders, schema.common)
    text = (
        "%s decides the split and is not a feature; "
        "to use its month, weekday or hour as features, add a copy under another name"
    )
    logger.info(text, column)
    logger.info("split by %s: %s", column, ", ".join(f"{name} {value}" for name, value in bounds.describe().items()))
    return replace(task, bounds=bounds)


def log_prepared(out: str | Path, prepared: PreparedData) -> None:
    """Log how many rows each split has."""
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in prepared.splits.items())
    logger.info("prepared %s: %s rows", out, rows)
    for text in [*split_warnings(prepared.split_hints), *_few_rows(prepared)]:
        logger.warning("%s", text)


def _few_rows(prepared: PreparedData) -> list[str]:
    """Return for which labels valid has so few rows of a class that what is chosen on it is chance."""
    counts = {label: min(each["0"], each["1"]) for label, each in prepared.splits["valid"].classes.items()}
    few = few_rows(counts)
    if not few:
        return []
    return [
        f"valid has few rows of the rarer class ({few}): what is chosen there is partly chance; a larger share "
        "for it helps (--split)"
    ]
