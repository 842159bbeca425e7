"""What happens to one part of a preparation in each of its stages (see ``dkan_core.data.preparation.parallel``)."""

import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.shard_writer import shard_count, shard_name, write_shard
from dkan_core.data.preparation.label_checks import check_values
from dkan_core.data.preparation.plan import PreparationPlan, read_records, unchanged_fragments
from dkan_core.data.preparation.sampling import save_row_sample
from dkan_core.data.preparation.statistics import Counts
from dkan_core.data.preparation.steps import check_unchanged, present_splits, record_of, spill_rows, survey_rows
from dkan_core.data.preparation.task import describe_files
from dkan_core.errors import DataError
from dkan_core.utils.progress import progress
from dkan_core.utils.schemas import parse_json
from dkan_core.utils.storage.failures import output_error
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.storage.shared_folder import SharedFolder


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Encoding and counts from the survey of all parts."""

    preprocessor: Preprocessor
    counts: Counts


def fitted_file(plan: PreparationPlan) -> str:
    """Return the name of the file that holds what was fitted."""
    return f"{plan.folder}/fitted.json"


def read_fitted(folder: SharedFolder, plan: PreparationPlan) -> Fitted:
    """Read what was fitted.

    Raises:
        DataError: Nothing was yet.
    """
    text = folder.read_text(fitted_file(plan))
    if text is None:
        raise DataError(f"{folder.uri}: no encoding is fitted yet; fit_preparation comes first")
    return _parse_fitted(text, f"{folder.uri}/{fitted_file(plan)}")


# Cached: a process may take many parts through two stages, and for wide data this is 10 MB of text.
@lru_cache(maxsize=1)
def _parse_fitted(text: str, where: str) -> Fitted:
    plain = parse_json(text, where)
    preprocessor = Preprocessor.from_dict(plain["preprocessor"])
    return Fitted(preprocessor=preprocessor, counts=Counts.from_dict(plain["counts"]))


def shard_paths(plan: PreparationPlan, fitted: Fitted) -> list[str]:
    """Return the path of every shard in the prepared data, in the order of the manifest."""
    record = record_of(fitted.preprocessor, plan.task)
    paths = []
    for split in present_splits(fitted.counts):
        count = shard_count(fitted.counts.rows[SPLITS.index(split)], record)
        paths += [f"{split}/{shard_name(index, count)}.safetensors" for index in range(count)]
    return paths


def survey(folder: SharedFolder, plan: PreparationPlan, part: int) -> int:
    """Count the part's rows and keep its sample; returns the rows."""
    fragments, task = unchanged_fragments(plan, part), plan.task
    rows = sum(fragment.rows for fragment in fragments)
    with progress("reading", rows, "rows") as advance:
        found = survey_rows(task, fragments, advance)
    read = {fragment.path for fragment in fragments}
    check_values(found.counts, describe_files([file for file in task.files if file.path in read]))
    with folder.staged(f"{plan.record('survey', part)}.arrow") as file:
        save_row_sample(file, found.sample)
    with folder.staged(f"{plan.record('survey', part)}.parquet") as file:
        found.value_counts.save(file)
    folder.write_json(f"{plan.record('survey', part)}.json", found.counts.to_dict())
    return rows


def encode(folder: SharedFolder, plan: PreparationPlan, part: int) -> int:
    """Encode the part's rows into one file, sorted by shard; returns the rows."""
    fitted, fragments = read_fitted(folder, plan), unchanged_fragments(plan, part)
    total = sum(fragment.rows for fragment in fragments)
    with _scratch() as scratch:
        with progress("encoding", total, "rows") as advance:
            writers, unseen = spill_rows(scratch, plan.task, fragments, fitted.preprocessor, fitted.counts, advance)
        surveyed = Counts.from_dict(folder.read_json(f"{plan.record('survey', part)}.json"))
        # The file may have changed since the survey: a row that moved to another split would be lost or occur
        # twice.
        for split, writer in writers.items():
            counted = surveyed.rows[SPLITS.index(split)]
            check_unchanged(fragments[0].path, split, counted, int(writer.rows.sum()))
        with folder.staged(f"{plan.record('encode', part)}.rows") as file:
            _join(itertools.chain.from_iterable(writer.spills() for writer in writers.values()), file)
    by_shard = np.concatenate([writer.rows for writer in writers.values()]).tolist()
    folder.write_json(f"{plan.record('encode', part)}.json", {"rows": by_shard, "unseen": unseen})
    return total


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder on this process's own disk."""
    try:
        with scratch_folder() as folder:
            yield folder
    except OSError as error:
        raise output_error(tempfile.gettempdir(), error) from error


def _join(files: Iterable[Path], joined: Path) -> None:
    """Append files to one file, removing each once it is appended."""
    with joined.open("wb") as target:
        for path in files:
            with path.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
            # Removed right away, so that the scratch disk never holds all rows twice.
            path.unlink()


def assemble(folder: SharedFolder, plan: PreparationPlan, part: int) -> int:
    """Write the part's share of the shards; returns their rows."""
    fitted = read_fitted(folder, plan)
    record = record_of(fitted.preprocessor, plan.task)
    starts = [[0, *itertools.accumulate(encoded["rows"])] for encoded in read_records(folder, plan, "encode")]
    # With n parts, each part takes every n-th shard, and so writes about as many shards of each split.
    share = list(enumerate(shard_paths(plan, fitted)))[part :: len(plan.parts)]
    shards = []
    with progress("writing", len(share), "shards") as advance:
        for index, path in share:
            ranges = [
                (
                    f"{plan.record('encode', source)}.rows",
                    rows[index] * record.itemsize,
                    rows[index + 1] * record.itemsize,
                )
                for source, rows in enumerate(starts)
                if rows[index] < rows[index + 1]
            ]
            if ranges:
                with folder.staged(path) as file:
                    shards.append(write_shard(file, path, partial(_gather, folder, ranges, record)))
            advance(1)
    folder.write_json(
        f"{plan.record('assemble', part)}.json", {"shards": [shard.model_dump(mode="json") for shard in shards]}
    )
    return sum(shard.rows for shard in shards)


def _gather(folder: SharedFolder, ranges: list[tuple[str, int, int]], record: np.dtype[Any]) -> npt.NDArray[Any]:
    content = folder.read_ranges(ranges)
    for (name, start, stop), found in zip(ranges, content, strict=True):
        if len(found) != stop - start:
            raise DataError(f"{folder.uri}/{name}: is truncated; encode that part again")
    return np.frombuffer(b"".join(content), dtype=record)
