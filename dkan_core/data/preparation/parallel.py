"""``prepare`` by many processes or pods at once: the same bytes, whatever the number of parts.

The stages are ``plan_preparation``, then ``prepare_part`` with "survey" for each part, ``fit_preparation``,
``prepare_part`` with "encode" and then with "assemble" for each part, and ``finish_preparation``. Each needs the one
before it to be finished for all parts. They share one folder or URI. A call may be repeated, also after it was
killed: it writes the same files again, each of them whole or not at all.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from dkan_core.config import PrepareConfig
from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.format.manifest import MANIFEST, OUTPUTS, PreparedData
from dkan_core.data.format.shard_writer import Shard
from dkan_core.data.preparation.plan import (
    PLAN,
    PreparationPlan,
    claim,
    open_plan,
    read_plan,
    read_records,
)
from dkan_core.data.preparation.reuse import earlier_result, is_reusable
from dkan_core.data.preparation.sampling import merge_samples
from dkan_core.data.preparation.stages import assemble, encode, fitted_file, read_fitted, shard_paths, survey
from dkan_core.data.preparation.statistics import Counts, Statistics, merge_counts, sample_rows
from dkan_core.data.preparation.steps import build_manifest, fit, log_prepared, log_unseen
from dkan_core.data.preparation.task import PreparationTask, find_task, with_time_bounds
from dkan_core.data.source.partition import cut_parts
from dkan_core.errors import ConfigError, DataError
from dkan_core.utils.storage.outputs import PARTIAL
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted

Stage = Literal["survey", "encode", "assemble"]
_STAGES = {"survey": survey, "encode": encode, "assemble": assemble}

# A decision. In Kubeflow a part takes nine pods, and Argo keeps the state of all pods of a run in one object of at most
# 1 MiB: 64 parts are 600 pods already.
MAX_PARTS = 64

logger = logging.getLogger(__name__)


def plan_preparation(
    sources: str | Path | Sequence[str | Path],
    prepared_uri: str | Path,
    config: PrepareConfig,
    *,
    parts: int,
    overwrite: bool = False,
) -> list[int]:
    """Check the files' schemas and cut their rows into parts, at bounds of row groups.

    Args:
        sources: Files, folders, globs or fsspec URIs, which every process can read.
        prepared_uri: Folder or URI that every process can write to: absent or empty, or one that holds what the same
            sources and settings gave.
        config: Roles of the columns, split rule, storage type and seed.
        parts: How many parts to cut the rows into, at most 64; fewer if there are fewer row groups.
        overwrite: Whether an earlier result of other sources or settings may be replaced, or a preparation that was
            interrupted be discarded. The earlier result stays until the new data are read and checked.

    Returns:
        The number of each part.

    Raises:
        ConfigError: ``parts`` is out of bounds, or ``prepared_uri`` empty.
        DataError: The sources are not what was expected; the message names file and column.
        OutputError: ``prepared_uri`` cannot take the result.
    """
    check_parts(parts)
    if not str(prepared_uri).strip():
        raise ConfigError(f"prepared_uri must be a path or URI that every process can reach, got {str(prepared_uri)!r}")
    finish_interrupted(prepared_uri, OUTPUTS)
    return plan_parts(find_task(sources, config), prepared_uri, parts=parts, overwrite=overwrite)


def plan_parts(task: PreparationTask, prepared_uri: str | Path, *, parts: int, overwrite: bool) -> list[int]:
    """Cut rows into parts, as ``plan_preparation`` does once ``find_task`` has read the footers."""
    cut, folder = cut_parts(task.files, task.footers, parts), SharedFolder(prepared_uri)
    if not overwrite and read_plan(folder) is None and is_reusable(task, earlier_result(folder)):
        logger.info("%s: the same sources and settings were prepared before", prepared_uri)
        return list(range(len(cut)))
    # The bounds of splits by time are found here because each part needs them; they take reading one column.
    task = with_time_bounds(task, [fragment for fragments in cut for fragment in fragments])
    plan = PreparationPlan(task=task, parts=cut)
    claim(folder, plan, overwrite=overwrite)
    logger.info("planned %s: %s rows in %d parts", prepared_uri, f"{task.rows:,}", len(plan.parts))
    return list(range(len(plan.parts)))


def check_parts(parts: int) -> None:
    """Raise ConfigError where rows cannot be cut into so many parts."""
    if parts < 1:
        raise ConfigError(f"parts (num_parts in Kubeflow) must be at least 1, got {parts}")
    if parts > MAX_PARTS:
        raise ConfigError(
            f"parts (num_parts in Kubeflow) must be at most {MAX_PARTS}, got {parts}: each takes several pods, and "
            "Kubeflow keeps the state of all pods of a run in one object of limited size; for more throughput give "
            "each pod more CPUs"
        )


def prepare_part(prepared_uri: str | Path, stage: Stage, part: int) -> int:
    """Take one part through one stage.

    Args:
        prepared_uri: Where the plan lies.
        stage: "survey" counts and samples the part's rows, "encode" encodes them and sorts them by shard, "assemble"
            writes the part's share of the shards from what all parts encoded.
        part: Its number.

    Returns:
        The rows that were read, encoded or written.

    Raises:
        DataError: A source file is not what was expected, or an earlier stage is not finished.
        OutputError: ``prepared_uri`` cannot be written.
    """
    if stage not in _STAGES:
        raise ConfigError(f"stage must be one of {', '.join(get_args(Stage))}, got {stage!r}")
    folder, plan = open_plan(prepared_uri)
    if isinstance(plan, PreparedData):
        return 0
    if not 0 <= part < len(plan.parts):
        raise ConfigError(f"part must be from 0 to {len(plan.parts) - 1}, got {part}")
    rows = _STAGES[stage](folder, plan, part)
    logger.info("%s of part %d of %d: %s rows", stage, part, len(plan.parts), f"{rows:,}")
    return rows


def fit_preparation(prepared_uri: str | Path) -> None:
    """Check what the survey counted, choose the encoding, and clear away an earlier result.

    Args:
        prepared_uri: Where the plan lies, with all parts surveyed.

    Raises:
        DataError: A label lacks a class, a split has no rows, a feature is useless, or a part is not surveyed yet.
        OutputError: ``prepared_uri`` cannot be written.
    """
    folder, plan = open_plan(prepared_uri)
    if isinstance(plan, PreparedData) or folder.read_text(fitted_file(plan)) is not None:
        return  # a second call: shards may lie there already
    roles = plan.task.roles
    counts = merge_counts([Counts.from_dict(record) for record in read_records(folder, plan, "survey")], roles)
    samples, values = (
        [partial(folder.open, f"{plan.record('survey', part)}.{suffix}") for part in range(len(plan.parts))]
        for suffix in ("arrow", "parquet")
    )
    sample = merge_samples(samples, sample_rows(len(roles.features)))
    value_counts = ValueCounts.from_files(*plan.task.counted_columns, values)
    preprocessor = fit(plan.task, Statistics(counts, sample, value_counts))
    # Only now, when nothing can be wrong with the source any more; the manifest first, so that it is never read half.
    for name in (MANIFEST, *SPLITS, PARTIAL):
        folder.remove(name)
    folder.write_json(fitted_file(plan), {"preprocessor": preprocessor.to_dict(), "counts": counts.to_dict()})


def finish_preparation(prepared_uri: str | Path) -> PreparedData:
    """Check that every shard is there, write the manifest and remove the intermediate files.

    Args:
        prepared_uri: Where the plan lies, with all parts assembled; or a whole result, which is left as it is.

    Returns:
        The manifest.

    Raises:
        DataError: A shard is missing or a part is not assembled yet.
        OutputError: ``prepared_uri`` cannot be written.
    """
    folder, plan = open_plan(prepared_uri)
    if isinstance(plan, PreparedData):
        folder.remove(WORK)  # where a first call was killed at its end
        return plan
    prepared = _finish(folder, plan)
    log_prepared(prepared_uri, prepared)
    return prepared


def _finish(folder: SharedFolder, plan: PreparationPlan) -> PreparedData:
    fitted = read_fitted(folder, plan)
    written = _written_shards(folder, plan)
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for path in shard_paths(plan, fitted):
        shards[path.split("/")[0]] += [written[path]] if path in written else []
    prepared = build_manifest(plan.task, fitted.preprocessor, fitted.counts, shards)
    unseen = Counter[str]()
    for record in read_records(folder, plan, "encode"):
        unseen.update(record["unseen"])
    log_unseen(unseen, plan.task.rows)
    folder.write_json(MANIFEST, prepared.to_dict())
    # The plan first: a call that is made again after a kill then finds the whole result, and only clears up.
    for name in (PLAN, WORK):
        folder.remove(name)
    return prepared


def _written_shards(folder: SharedFolder, plan: PreparationPlan) -> dict[str, Shard]:
    """Return the shards that the parts wrote, by path, after a look at each."""
    records = read_records(folder, plan, "assemble")
    shards = [Shard.model_validate_json(json.dumps(shard)) for record in records for shard in record["shards"]]
    found = {name: size for split in SPLITS for name, size in folder.sizes(split).items()}
    for shard in shards:
        if found.get(shard.path) != shard.bytes:
            raise DataError(f"{folder.uri}/{shard.path}: has changed since it was written; prepare the data again")
    return {shard.path: shard for shard in shards}
