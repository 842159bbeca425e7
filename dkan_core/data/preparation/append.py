"""``prepare --append``: new rows, encoded as prepared data are, beside the rows that are there.

New shards are written first, under names of their own. The manifest that lists them is replaced last, in one step: if
the process is killed, the data are the old or the new ones, and the next call removes shards that are not listed.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from dkan_core.config import PrepareConfig
from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import MANIFEST, OUTPUTS, PreparedData, no_manifest
from dkan_core.data.format.shard_writer import Shard, ShardWriter, write_shard
from dkan_core.data.preparation.label_checks import check_values
from dkan_core.data.preparation.plan import PLAN
from dkan_core.data.preparation.reference import read_reference
from dkan_core.data.preparation.reuse import earlier_result, identity
from dkan_core.data.preparation.statistics import Counts, collect_statistics, merge_counts
from dkan_core.data.preparation.steps import (
    log_invalid,
    log_labels,
    log_prepared,
    log_unseen,
    spill_rows,
    with_room,
    written_splits,
)
from dkan_core.data.preparation.task import PreparationTask, find_task
from dkan_core.data.source.copies import find_original
from dkan_core.data.source.partition import whole_files
from dkan_core.data.source.split_rule import settings_of_rule
from dkan_core.errors import ConfigError, DataError, OutputError, redact
from dkan_core.utils.arrays import Int64
from dkan_core.utils.messages import listed_names
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted, output_lock

NAME = re.compile(r"append-(\d+)-")

logger = logging.getLogger(__name__)


def append_rows(
    sources: str | Path | Sequence[str | Path],
    prepared: str | Path,
    *,
    like: str | Path | None = None,
    drop: Sequence[str] = (),
) -> PreparedData:
    """Add the rows of Parquet files to prepared data, with the encoding, labels and split rule of these.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        prepared: Folder or URI that ``prepare`` wrote.
        like: Model or prepared data whose encoding the data must have. Default: not checked.
        drop: Columns that the log need not name as ignored.

    Returns:
        The manifest that lies there.

    Raises:
        ConfigError: The encoding is not that of ``like``, or the rows were split by time.
        DataError: The sources are not what was expected, or were added before; the message names file and column.
        OutputError: ``prepared`` cannot take the rows; the data are then as they were.
    """
    finish_interrupted(prepared, OUTPUTS)
    folder = SharedFolder(prepared)
    with output_lock(prepared):
        earlier, task = find_new_rows(sources, folder, like, drop)
        # New rows are numbered after the old ones, so each gets the split that it would have if prepared with them.
        fragments = whole_files(task.files, task.footers, first=sum(file.rows for file in earlier.sources))
        with progress("reading", task.rows, "rows") as advance:
            found = collect_statistics(fragments, task.roles, task.config, advance)
        counts = merge_counts([found.counts], task.roles)
        check_values(counts, task.where, advice=f"those of {prepared} are 0 and 1: convert these values")
        log_labels(counts, task.roles)
        log_invalid(counts)
        encoding = with_room(_counted(earlier, found.sample.rows, counts.rows[0], task.where), counts)
        _remove_leftovers(folder, earlier)
        with scratch_folder() as scratch:
            with progress("writing", task.rows, "rows") as advance:
                writers, unseen = spill_rows(scratch, task, fragments, encoding, counts, advance)
            shards = {split: _publish(folder, earlier, split, writer) for split, writer in writers.items()}
        joined = _joined(earlier, task, encoding, counts, shards)
        folder.write_json(MANIFEST, joined.to_dict())
        folder.remove(WORK)
    log_unseen(unseen, task.rows)
    log_prepared(prepared, joined)
    return joined


def find_new_rows(
    sources: str | Path | Sequence[str | Path], folder: SharedFolder, like: str | Path | None, drop: Sequence[str]
) -> tuple[PreparedData, PreparationTask]:
    """Return the manifest of prepared data, and the rows to add to them.

    Args and errors are those of ``append_rows``.
    """
    earlier = _read_earlier(folder, like)
    task = find_task(sources, _settings(earlier, folder.uri, drop), adds=True)
    task = replace(task, grouped=earlier.grouped)  # data of earlier versions hold no group numbers
    _check_new(task, earlier)
    return earlier, task


def _read_earlier(folder: SharedFolder, like: str | Path | None) -> PreparedData:
    """Return the manifest of data that rows can be added to."""
    earlier = earlier_result(folder)
    if earlier is None:
        raise no_manifest(folder.uri)
    if folder.read_json(PLAN) is not None:
        raise OutputError(f"{folder.uri}: a preparation is in progress there, or was interrupted")
    if like is not None and read_reference(str(like)).preprocessor != earlier.preprocessor:
        raise ConfigError(f"like {like}: has another encoding than {folder.uri}; rows of two encodings do not mix")
    return earlier


def _settings(earlier: PreparedData, folder: str, drop: Sequence[str]) -> PrepareConfig:
    """Return the settings that the data were prepared with, as far as they concern new rows."""
    rule = earlier.split_rule
    if rule["by"] == "time":
        raise ConfigError(
            f"{folder}: its rows were split by {rule['column']} (time), and new rows would move the boundaries; "
            "prepare all rows again"
        )
    settings = settings_of_rule(rule)
    return PrepareConfig(like=folder, weight=earlier.weight, seed=earlier.seed, drop=tuple(drop), **settings)


def _check_new(task: PreparationTask, earlier: PreparedData) -> None:
    """Raise DataError if the data already hold a source file, or its rows may be split by another rule.

    A file that was written anew may hold other rows or corrected ones, so it is only warned of.
    """
    here, there, group = task.roles.keys, earlier.split_rule.get("keys", ""), task.config.group
    if group is not None and here and there and here != there:
        raise DataError(f"{task.where}: group column {group!r} holds {here}; that of the rows there holds {there}")
    if task.roles.has_new_keys and not there:
        column = "a column of dates or times" if group is None else f"group column {group!r}"
        raise DataError(
            f"{task.where}: version 0.2 prepared the rows there and splits {column} differently; prepare all rows again"
        )
    known = {identity(file) for file in earlier.sources}
    for file in task.files:
        original = file.path if identity(file) in known else find_original(file, earlier.sources)
        if original is not None:
            copy = f" (it is a copy of {original})" if original != file.path else ""
            raise DataError(
                f"{file.path}: its rows are already there{copy}; adding them again could put a row in both train and "
                "test"
            )
    paths = {path for path, *_ in known}
    if again := [path for path in (redact(file.path) for file in task.files) if path in paths]:
        logger.warning(
            "%s: rows of an earlier version are there already, and stay; if these are the same rows, corrected, "
            "prepare all rows again, as a row may now be in both train and test",
            listed_names(again),
        )


def _remove_leftovers(folder: SharedFolder, earlier: PreparedData) -> None:
    """Remove shards that no manifest lists: a killed process left them."""
    listed = {shard.path for split in earlier.splits.values() for shard in split.shards}
    for split in SPLITS:
        for name in folder.sizes(split):
            if NAME.match(name.removeprefix(f"{split}/")) and name not in listed:
                folder.remove(name)


def _publish(folder: SharedFolder, earlier: PreparedData, split: str, writer: ShardWriter) -> list[Shard]:
    """Write a split's new shards where the data are; returns them as the manifest lists them."""
    shards = []
    for spill in writer.spills():
        path = f"{split}/append-{_next_number(earlier):04d}-{spill.stem}.safetensors"
        with folder.staged(path) as file:
            shards.append(write_shard(file, path, partial(np.fromfile, spill, writer.record)))
    return shards


def _next_number(earlier: PreparedData) -> int:
    paths = (shard.path.partition("/")[2] for split in earlier.splits.values() for shard in split.shards)
    return 1 + max((int(found[1]) for found in map(NAME.match, paths) if found), default=0)


def _counted(earlier: PreparedData, sample: pa.Table, rows: int, where: str) -> Preprocessor:
    """Return the encoding of prepared data with the distribution of old rows of train and of ``rows`` new ones."""
    encoding = earlier.preprocessor
    if encoding.counts is None:
        return encoding
    found = count_values(sample, encoding, where)
    before = earlier.splits["train"].rows
    counts = {
        name: (_of_all(np.array(old), before) + _of_all(found[name], rows)).tolist()
        for name, old in encoding.counts.items()
    }
    return encoding.model_copy(update={"counts": counts})


def _of_all(counts: Int64, rows: int) -> Int64:
    """Return a histogram scaled to ``rows`` rows, as only a sample of them may have been counted."""
    scaled: Int64 = np.rint(counts * (rows / max(1, int(counts.sum())))).astype(np.int64)
    return scaled


def _joined(
    earlier: PreparedData,
    task: PreparationTask,
    encoding: Preprocessor,
    counts: Counts,
    shards: dict[str, list[Shard]],
) -> PreparedData:
    """Return the manifest of old and new rows.

    Raises:
        DataError: Other rows were written than were counted.
    """
    splits = dict(earlier.splits)
    for split, new in written_splits(task, counts, shards).items():
        splits[split] = splits[split].joined(new) if split in splits else new
    invalid = dict(earlier.invalid)
    for name, found in counts.invalid.items():
        before = earlier.invalid.get(name, {})
        invalid[name] = {key: before.get(key, 0) + count for key, count in found.items()}
    return earlier.changed(
        preprocessor=encoding,
        splits={split: splits[split] for split in SPLITS if split in splits},
        invalid=invalid,
        sources=[*earlier.sources, *task.sources],
    )
