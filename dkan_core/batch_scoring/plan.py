"""The plan of a batch scoring: which files, by which model, in which parts; written once, read by every pod.

It lies in ``.work/plan.json`` under the output. Beside it, in a folder named by the plan's id, lie the results of the
parts and a copy of the model, so that publishing another model meanwhile changes nothing.
"""

import base64
import hashlib
import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from dkan_core.data.preparation.label_columns import label_columns
from dkan_core.data.source.files import find_parquet, split_sources, stamps, takes_in
from dkan_core.errors import ConfigError, DataError, OutputError
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.output_columns import check_sources, copied_folder_types
from dkan_core.utils.file_names import MODEL_FOLDER
from dkan_core.utils.messages import counted
from dkan_core.utils.schemas import Schema
from dkan_core.utils.storage.outputs import entries, foreign_contents
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder

# A scoring is in progress as long as this file exists.
PLAN = f"{WORK}/plan.json"
# Readers of Parquet folders skip names that begin with an underscore.
DONE = "_scoring.json"

# Lists files to remove, before any is removed, so that a killed call can be repeated.
REPLACED = f"{WORK}/replaced.json"

logger = logging.getLogger(__name__)


class PlannedFile(Schema):
    """A source file, and where its scores go."""

    source: str
    output: str
    rows: int
    bytes: int
    modified: str


class ReplacedOutputs(Schema):
    """Outputs and work of an earlier scoring, which are to be removed."""

    names: list[str]


class ScoringPlan(Schema):
    """Which files are scored, by which model, in which parts."""

    format_version: Literal[1] = 1
    model: str
    fingerprint: str
    columns: list[str]
    labels: list[str]
    files: list[PlannedFile]
    parts: list[list[int]]

    arrow_schema: str = ""
    """Schema of the scores of all files: an IPC message in base64. Empty: dkan 0.2.0 made the plan."""

    @cached_property
    def id(self) -> str:
        """A hash of the content without the schema, which follows from the files and the columns."""
        return hashlib.sha256(self.model_dump_json(exclude={"arrow_schema"}).encode()).hexdigest()[:16]

    @cached_property
    def scores_schema(self) -> pa.Schema:
        """Schema of the scores: the same for every file, whatever the types of its own columns."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))

    @property
    def folder(self) -> str:
        """Where the parts' work lies."""
        return f"{WORK}/{self.id}"

    @property
    def model_folder(self) -> str:
        """Where the copy of the model lies."""
        return f"{self.folder}/{MODEL_FOLDER}"

    def record(self, part: int) -> str:
        """Return the name of a part's record, without a suffix."""
        return f"{self.folder}/parts/{part:05d}"


def plan_scoring(
    model: str | Path,
    sources: str | Path | Sequence[str | Path],
    output_uri: str | Path,
    *,
    columns: Sequence[str] = (),
    labels: Sequence[str] = (),
    parts: int = 8,
    overwrite: bool = False,
) -> list[int]:
    """Check the model and every file's columns, and share the files out among the parts by their size.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder, or a published model; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs, which every process can read.
        output_uri: Folder or URI that every process can write to: absent or empty, or one that holds what the same
            plan gave. Scores get the path of their source file, relative to the folder that all files share; the
            sources must not include them.
        columns: Source columns to pass through.
        labels: Label columns to compare the scores with, in the order of the model's labels if they have other names.
            They hold 0, 1 or null, or the values that the model was trained with.
        parts: How many parts to distribute the files over; fewer if there are fewer files.
        overwrite: Whether the scores of another plan may be replaced, or a scoring that was interrupted be discarded.

    Returns:
        The number of each part. If the same plan was scored and accepted before, and its scores are still there, a
        single part that has nothing to do.

    Raises:
        ConfigError: A setting is out of range.
        DataError: The model or the sources are not what was expected; the message names file and column.
        OutputError: ``output_uri`` cannot take the result.
    """
    if parts < 1:
        raise ConfigError(f"parts (num_parts in Kubeflow) must be at least 1, got {parts}")
    if not str(output_uri).strip():
        raise ConfigError(f"output_uri must be a path or URI that every process can reach, got {str(output_uri)!r}")
    if not str(model).strip():
        raise ConfigError(f"model_uri must name a model or a run folder, got {str(model)!r}")
    output = SharedFolder(output_uri)
    paths = find_parquet(split_sources(sources))
    with local_copy(model) as folder:
        saved = SavedModel(folder)
        plan = _make_plan(saved, str(model), paths, columns, labels, parts)
        _check_apart(output, plan, split_sources(sources))
        accepted = read_accepted(output)
        if accepted is not None and accepted.plan == plan.id and not missing_files(output, accepted.files):
            logger.info("%s: the same files were scored with the same model and accepted; nothing to do", output_uri)
            return [0]
        _claim(output, plan, overwrite=overwrite)
        for name in sorted(saved.files.files):
            with output.staged(f"{plan.model_folder}/{name}") as aside:
                aside.write_bytes(saved.files.read(name))
    rows = sum(file.rows for file in plan.files)
    what = [counted(rows, "row"), counted(len(paths), "file"), counted(len(plan.parts), "part")]
    logger.info("planned %s: %s of %s in %s", output_uri, *what)
    return list(range(len(plan.parts)))


def _make_plan(
    saved: SavedModel, model: str, paths: list[str], columns: Sequence[str], labels: Sequence[str], parts: int
) -> ScoringPlan:
    compared = label_columns(saved.config.labels, labels) if labels else ()
    passed = list(dict.fromkeys(columns))
    found = stamps(paths)  # before the footers, so that a file replaced meanwhile is noticed later
    schema, rows = check_sources(saved, paths, passed, compared, copied_folder_types(saved, paths))
    # Some files may be empty, but not all.
    if not any(rows):
        raise DataError(f"{paths[0]}: no rows in any source file")
    names = _below_common_folder(paths)
    files = []
    for path, count, (size, modified) in zip(paths, rows, found, strict=True):
        files.append(PlannedFile(source=path, output=names[path], rows=count, bytes=size, modified=modified))
    return ScoringPlan(
        model=model,
        fingerprint=saved.files.fingerprint(),
        columns=passed,
        labels=list(compared),
        files=files,
        parts=share_out([file.bytes for file in files], parts),
        arrow_schema=base64.b64encode(schema.serialize()).decode(),
    )


def share_out(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Distribute things so that the largest share is small: the largest first, each to the smallest share so far.

    >>> share_out([10, 70, 30, 40], 2)
    [[0, 1], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(min(parts, len(sizes)))]
    loads = [(0, 0)] * len(shares)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least = min(range(len(shares)), key=lambda part: (loads[part], part))
        shares[least].append(index)
        # Ties go to the share with fewer files, so that empty files are spread as well.
        loads[least] = (loads[least][0] + sizes[index], len(shares[least]))
    return [sorted(share) for share in shares]


def _below_common_folder(paths: Sequence[str]) -> dict[str, str]:
    """Return each path without the folders that all have in common.

    >>> _below_common_folder(["s3://bucket/day=1/a.parquet", "s3://bucket/day=2/a.parquet"])
    {'s3://bucket/day=1/a.parquet': 'day=1/a.parquet', 's3://bucket/day=2/a.parquet': 'day=2/a.parquet'}
    """
    folders = [path.split("/")[:-1] for path in paths]
    common = 0
    # Only folders are compared, so that a single file keeps its name.
    while all(len(folder) > common and folder[common] == folders[0][common] for folder in folders):
        common += 1
    names = {path: "/".join(path.split("/")[common:]) for path in paths}
    odd = next((path for path, name in names.items() if "://" in name), None)
    if odd is not None:
        raise DataError(f"{odd}: is not on the filesystem of {paths[0]}; score the files of one filesystem at a time")
    return names


def _check_apart(output: SharedFolder, plan: ScoringPlan, sources: Sequence[str]) -> None:
    """Raise OutputError where a source file lies in the output folder, or the scores would be among the sources.

    Otherwise a source might be replaced or taken for scores, and the next call would take scores for source rows.
    """
    root = output.fs.unstrip_protocol(output.root).rstrip("/")
    for file in plan.files:
        source = file.source if "://" in file.source else f"file://{Path(file.source).absolute()}"
        # Scores have the names of their sources, and would overwrite them in the same folder.
        if source.startswith(f"{root}/"):
            raise OutputError(f"{output.uri}: holds source files ({file.source}); choose another folder")
    for named in sources:
        if takes_in(named, output.uri, [file.output for file in plan.files]):
            raise OutputError(f"{output.uri}: lies in a folder of sources ({named}); choose a folder outside of it")


def _claim(output: SharedFolder, plan: ScoringPlan, *, overwrite: bool) -> None:
    """Write the plan, unless other files are there; remove the record that an earlier scoring is complete."""
    under_way, done = read_plan(output), read_done(output)
    is_outdated = under_way is not None and not under_way.arrow_schema
    if under_way is None or under_way.id != plan.id or is_outdated:
        earlier = {} if done is None else {done.plan: [file.output for file in done.files]}
        if under_way is not None:
            earlier[under_way.id] = [file.output for file in under_way.files]
        _check_taken(output, plan, set(earlier), overwrite=overwrite)
        stale = {name for names in earlier.values() for name in names} - {file.output for file in plan.files}
        folders = {f"{WORK}/{name}" for name in earlier if name != plan.id or is_outdated}
        # Written before the plan: afterwards, the earlier plan's files would be unknown.
        output.write_json(REPLACED, ReplacedOutputs(names=sorted(stale | folders)).model_dump())
        output.write_json(PLAN, json.loads(plan.model_dump_json()))
    output.remove(DONE)
    replaced = output.read(ReplacedOutputs, REPLACED)
    # None if an earlier call has removed them all.
    for name in [] if replaced is None else replaced.names:
        output.remove(name)
    output.remove(REPLACED)


def _check_taken(output: SharedFolder, plan: ScoringPlan, earlier: set[str], *, overwrite: bool) -> None:
    """Raise OutputError where other scores lie, and are not to be replaced, or something else."""
    if earlier - {plan.id} and not overwrite:
        raise OutputError(
            f"{output.uri}: other files were scored there, or with another model or other settings; "
            "pass overwrite=True to replace them, or choose another folder"
        )
    foreign = sorted(entries(output.uri) - {WORK})
    if foreign and not earlier:
        raise foreign_contents(output.uri, foreign[0])


def read_plan(output: SharedFolder) -> ScoringPlan | None:
    """Return the plan that is in progress, if there is one.

    Raises:
        DataError: It is damaged, or of a later version of dkan.
    """
    return output.read(ScoringPlan, PLAN)


def open_plan(output_uri: str | Path) -> tuple[SharedFolder, ScoringPlan]:
    """Return an output folder and the plan that is in progress there.

    Raises:
        DataError: There is none, or an earlier version of dkan made it.
    """
    output = SharedFolder(output_uri)
    plan = read_plan(output)
    if plan is None:
        raise DataError(f"{output_uri}: no scoring is in progress there; plan_scoring comes first")
    if not plan.arrow_schema:
        raise DataError(f"{output_uri}: the plan is of an earlier version of dkan; call plan_scoring again")
    return output, plan


class ScoredFile(Schema):
    """A complete file of scores."""

    output: str
    """Path of the scores, relative to ``_scoring.json``."""

    source: str
    """The file that was scored."""

    rows: int
    """Number of rows."""

    bytes: int
    """Size of the scores."""


class Scoring(Schema):
    """Contents of ``_scoring.json``, which is written last: where it exists, all files do."""

    format_version: Literal[1] = 1
    """Version of the format."""

    plan: str
    """Digest of the plan."""

    model: str
    """The model, as it was named."""

    fingerprint: str
    """Fingerprint of the model."""

    rows: int
    """Rows of all files."""

    columns: list[str]
    """Columns that were passed through."""

    labels: list[str]
    """Labels that are scored."""

    files: list[ScoredFile]
    """The files of scores."""

    metrics: dict[str, Any] | None
    """Exact metrics over all rows, where labels were named."""

    drift: dict[str, Any]
    """Drift of each column and of the scores."""


def read_done(output: SharedFolder) -> Scoring | None:
    """Return the record of an earlier scoring that is complete, if there is one."""
    return output.read(Scoring, DONE)


def read_accepted(output: SharedFolder) -> Scoring | None:
    """Return the record of an earlier complete scoring, unless another one is in progress."""
    return read_done(output) if read_plan(output) is None else None


def missing_files(output: SharedFolder, files: Sequence[ScoredFile]) -> list[str]:
    """Return the outputs that are missing or do not have their recorded size."""
    output.fs.invalidate_cache()
    # One listing, as a request for each of thousands of files in a bucket would take minutes.
    found = output.fs.find(output.root, detail=True)
    return [file.output for file in files if found.get(f"{output.root}/{file.output}", {}).get("size") != file.bytes]
