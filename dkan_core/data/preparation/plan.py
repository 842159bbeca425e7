"""The plan of a preparation that many pods share: written once, read by every one of them.

It lies in ``.work/plan.json`` of the prepared data. What the parts hand to each other lies beside it, in a folder named
by the plan's id, so that nothing of another plan is ever taken for this one's.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from dkan_core.config import PrepareConfig, build_config
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import CONTENTS, MANIFEST, OUTPUTS, PreparedData
from dkan_core.data.preparation.reuse import earlier_result, is_reusable
from dkan_core.data.preparation.task import PreparationTask
from dkan_core.data.source.files import AT_ONCE, stamps, whole_second
from dkan_core.data.source.partition import Fragment
from dkan_core.data.source.roles import ColumnRoles
from dkan_core.data.source.sources import SourceFile
from dkan_core.data.source.time_split import TimeBounds
from dkan_core.errors import DataError, OutputError
from dkan_core.utils.messages import some_of
from dkan_core.utils.schemas import parse_json
from dkan_core.utils.storage.outputs import PARTIAL, check_free, entries, foreign_contents
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder

# A plan of another version is refused: it is made again.
FORMAT_VERSION = 4

# Written first and removed first: while it is there, a preparation is in progress.
PLAN = f"{WORK}/plan.json"
DONE = {"survey": "surveyed", "encode": "encoded", "assemble": "assembled"}


@dataclass(frozen=True, kw_only=True)
class PreparationPlan:
    """Plan of a preparation: its task, and which rows each part reads."""

    task: PreparationTask
    parts: list[list[Fragment]]

    @cached_property
    def id(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """Where the parts' work lies."""
        return f"{WORK}/{self.id}"

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "config": asdict(self.task.config),
            "files": [file.model_dump() for file in self.task.files],
            "schema": asdict(self.task.roles),
            "bounds": None if self.task.bounds is None else asdict(self.task.bounds),
            "hints": dict(self.task.hints),
            "encoding": None if self.task.encoding is None else self.task.encoding.to_dict(),
            "parts": [[_plain_fragment(fragment) for fragment in fragments] for fragments in self.parts],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return {"id": self.id, **self._content()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "PreparationPlan":
        """Rebuild a plan from its plain form."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain["schema"].items()
        }
        encoding, bounds = plain["encoding"], plain["bounds"]
        config = build_config(PrepareConfig, plain["config"])
        task = PreparationTask(
            config=config,
            files=[SourceFile(**file) for file in plain["files"]],
            roles=ColumnRoles(**fields),
            encoding=None if encoding is None else Preprocessor.from_dict(encoding),
            bounds=None if bounds is None else TimeBounds(**{**bounds, "stretches": tuple(bounds["stretches"])}),
            grouped=config.has_groups,
            hints=plain["hints"],
        )
        return cls(task=task, parts=[[_fragment(fragment) for fragment in fragments] for fragments in plain["parts"]])

    def record(self, stage: str, part: int) -> str:
        """Return the name of what says that a part is through a stage, without a suffix."""
        return f"{self.folder}/{stage}/{part:05d}"


def _plain_fragment(fragment: Fragment) -> dict[str, Any]:
    # Not ``asdict``, which copies every value: a plan may have a hundred thousand fragments.
    return {name: value for name, value in vars(fragment).items() if name != "file"}


def _fragment(plain: dict[str, Any]) -> Fragment:
    return Fragment(**{**plain, "groups": tuple(plain["groups"])})


def claim(folder: SharedFolder, plan: PreparationPlan, *, overwrite: bool) -> None:
    """Write the plan, unless other data are there; nothing but ``.work`` is touched.

    Args:
        folder: Where the data are to be prepared.
        plan: What is to be prepared.
        overwrite: Whether an earlier result, or another preparation in progress, may be replaced.

    Raises:
        OutputError: Another preparation is in progress there, or there lies an earlier result of other data or settings
            and it is not to be replaced, or something else.
    """
    names, under_way = entries(folder.uri), folder.read_json(PLAN)
    other = None if under_way is None else under_way.get("id")
    if other == plan.id:
        return
    if other is not None and not overwrite:
        raise OutputError(
            f"{folder.uri}: another preparation is in progress there, or was interrupted; "
            "pass overwrite=True to discard it, or choose another folder"
        )
    foreign = sorted(names - {WORK})
    if foreign and MANIFEST not in names and other is None and PARTIAL not in names:
        raise foreign_contents(folder.uri, foreign[0])
    replaced = overwrite or MANIFEST not in names or is_reusable(plan.task, earlier_result(folder))
    check_free(folder.uri, ours=(*OUTPUTS, WORK), overwrite=replaced, contents=CONTENTS)
    # The plan is written first: files of an earlier plan are unused from then on, and harmless if this call is killed.
    folder.write_json(PLAN, plan.to_dict())
    if other is not None:
        folder.remove(f"{WORK}/{other}")


def read_plan(folder: SharedFolder) -> PreparationPlan | None:
    """Return the plan that is in progress, if there is one.

    Raises:
        DataError: Another version of dkan wrote it.
    """
    text = folder.read_text(PLAN)
    return None if text is None else _parse_plan(text, f"{folder.uri}/{PLAN}")


# Cached: a process may take many parts through three stages, and with many files the plan is megabytes of text.
@lru_cache(maxsize=1)
def _parse_plan(text: str, where: str) -> PreparationPlan:
    plain = parse_json(text, where)
    if not isinstance(plain, dict) or plain.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{where}: is of another version of dkan; plan the preparation again")
    try:
        plan = PreparationPlan.from_dict(plain)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{where}: is not a plan ({error!r}); plan the preparation again") from error
    if plan.id != plain.get("id"):
        raise DataError(f"{where}: was altered; plan the preparation again")
    return plan


def open_plan(uri: str | Path) -> tuple[SharedFolder, PreparationPlan | PreparedData]:
    """Return a folder and the plan that is in progress there; where it is done, the result.

    Raises:
        DataError: There is neither.
    """
    folder = SharedFolder(uri)
    # At its end, the manifest is there before the plan goes.
    found = read_plan(folder) or earlier_result(folder)
    if found is None:
        raise DataError(f"{uri}: no preparation is in progress there; plan_preparation comes first")
    return folder, found


def unchanged_fragments(plan: PreparationPlan, part: int) -> list[Fragment]:
    """Return the fragments that a part reads, after checking that they have not changed since the plan was made.

    Raises:
        DataError: A source file is another one now.
    """
    read = {fragment.path for fragment in plan.parts[part]}
    files = [file for file in plan.task.files if file.path in read]
    found: dict[str, SourceFile] = {}
    for file, (size, modified) in zip(files, stamps([file.path for file in files]), strict=True):
        if (size, whole_second(modified)) != (file.bytes, whole_second(file.modified)):
            raise DataError(f"{file.path}: the source changed after the preparation was planned; plan it again")
        found[file.path] = file.model_copy(update={"modified": modified})
    return [replace(fragment, file=found[fragment.path]) for fragment in plan.parts[part]]


def read_records(folder: SharedFolder, plan: PreparationPlan, stage: str) -> list[Any]:
    """Return what each part left at the end of a stage: "survey", "encode" or "assemble".

    Raises:
        DataError: A part is not through it yet.
    """
    names = [f"{plan.record(stage, part)}.json" for part in range(len(plan.parts))]
    # At once, because each part reads the records of all, and a file of a bucket takes tens of milliseconds.
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dkan-record") as pool:
        records = list(pool.map(folder.read_json, names))
    missing = [part for part, record in enumerate(records) if record is None]
    if missing:
        parts = f"part {missing[0]}" if len(missing) == 1 else f"parts {some_of([*map(str, missing)], 8)}"
        raise DataError(
            f"{folder.uri}: {parts} of {len(records)} not {DONE[stage]} yet; "
            f"prepare_part with stage={stage!r} comes first"
        )
    return records
