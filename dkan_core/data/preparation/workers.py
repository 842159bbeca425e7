"""``prepare`` by several workers of one machine, part by part: killed at any point, it continues where it was.

Workers leave the same files for each other as pods do (see ``dkan_core.data.preparation.parallel``). A worker takes
one part through a stage at a time, so that after a kill at most one part per worker is done again.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dkan_core.data.format.manifest import OUTPUTS, PreparedData
from dkan_core.data.preparation.parallel import (
    MAX_PARTS,
    Stage,
    finish_preparation,
    fit_preparation,
    plan_parts,
    prepare_part,
)
from dkan_core.data.preparation.plan import read_plan
from dkan_core.data.preparation.task import PreparationTask
from dkan_core.errors import DataError, UnreadableError
from dkan_core.utils.progress import progress
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder
from dkan_core.utils.storage.staging import finish_interrupted, output_lock


def prepare_in_parts(task: PreparationTask, out: str | Path, *, workers: int, overwrite: bool) -> PreparedData:
    """Turn Parquet files into a prepared data set, or continue to: the bytes are those of ``prepare``.

    Args:
        task: What is to be prepared.
        out: Folder or URI, as for ``plan_preparation``.
        workers: How many parts are worked on at once.
        overwrite: Whether an earlier result of other sources or settings may be replaced.

    Returns:
        The manifest that lies there.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
        OutputError: ``out`` cannot take the result.
    """
    finish_interrupted(out, OUTPUTS)
    with output_lock(out):
        plan_parts(task, out, parts=MAX_PARTS, overwrite=overwrite)
        try:
            _run_stage(out, "survey", workers)
            fit_preparation(out)
            for stage in ("encode", "assemble"):
                _run_stage(out, stage, workers)
        except UnreadableError:
            raise  # such as a lost connection: the next attempt continues
        except DataError:
            # The rows cannot be prepared as they are: the next attempt will need another plan.
            SharedFolder(out).remove(WORK)
            raise
        return finish_preparation(out)


def _run_stage(out: str | Path, stage: Stage, workers: int) -> None:
    """Take every part through a stage that is not through it yet."""
    folder = SharedFolder(out)
    plan = read_plan(folder)
    if plan is None:
        return  # a whole result of the same sources and settings
    left = [part for part in range(len(plan.parts)) if folder.read_json(f"{plan.record(stage, part)}.json") is None]
    with progress(stage, len(left), "parts") as advance, ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(partial(prepare_part, out, stage), left):
            advance(1)
