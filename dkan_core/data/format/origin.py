"""Origin of a model's training rows: they may be in the test split of other data."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.source.sources import SourceFile
from dkan_core.utils.schemas import Schema

# Of more source files, those with the smallest digests are kept: two data sets that share many files then share some
# of the kept ones. A thousand digests take 19 kB in a model.
KEPT_FILES = 1000
# In a longer chain of models, each trained on from the one before, the origins of the last ones are kept.
KEPT_ORIGINS = 10

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Origin(Schema):
    """Source files of prepared data, and the rule that split their rows; raw rows have no such rule."""

    split_rule: dict[str, str]
    seed: int
    files: list[Digest]
    """Of names, rows and sizes, so that a copy elsewhere is known again, in the order in which rows are numbered."""


def origin_of(manifest: PreparedData) -> Origin:
    """Return where prepared data came from."""
    return Origin(split_rule=manifest.split_rule, seed=manifest.seed, files=_digests(manifest.sources))


def trained_on(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the origins of the rows that a model and its predecessors were trained on, as dicts, its own first.

    Args:
        metrics: Those in its folder; an earlier dkan wrote none of this.
    """
    return [*filter(None, [metrics.get("origin")]), *metrics.get("earlier_origins", [])]


def raw_origin(files: Sequence[SourceFile]) -> Origin:
    """Return where raw rows came from."""
    return Origin(split_rule={}, seed=0, files=_digests(files))


def overlap(earlier: Origin, ours: Origin, name: str = "the source file") -> str:
    """Return why rows that a model was trained on may be in another split here; empty if they cannot, or few can.

    Args:
        earlier: Of the data that it was trained on.
        ours: Of the data at hand.
        name: What messages call these where they are one file.
    """
    shared = {*earlier.files} & {*ours.files}
    if not shared:
        return ""
    several = f"{len(shared)} of these {len(ours.files)} files {'was' if len(shared) == 1 else 'were'}"
    found = f"{several if len(ours.files) > 1 else f'{name} was'} among its training files"
    if not ours.split_rule:
        return found
    # Version 0.2 did not record "keys", so the two rules are compared without it if one of them lacks it.
    known = {*earlier.split_rule} & {*ours.split_rule} | {*earlier.split_rule, *ours.split_rule} - {"keys"}
    rules = [
        {**{name: value for name, value in each.split_rule.items() if name in known}, "seed": each.seed}
        for each in (earlier, ours)
    ]
    if rules[0] == rules[1] and (ours.split_rule["by"] != "row" or _numbered_alike(earlier.files, ours.files)):
        return ""
    why = "by the numbers of rows, which other files change" if rules[0] == rules[1] else "by another rule"
    return f"{found}, split {why}"


def _numbered_alike(earlier: list[str], ours: list[str]) -> bool:
    """Return whether rows of the same files have the same numbers: one list of files is the beginning of the other."""
    # Beyond ``KEPT_FILES`` files, the digests are not in the files' order.
    common = min(len(earlier), len(ours)) if max(len(earlier), len(ours)) < KEPT_FILES else KEPT_FILES
    return earlier[:common] == ours[:common]


def _digests(files: Sequence[SourceFile]) -> list[str]:
    digests = [_digest(file) for file in files]
    return digests if len(digests) < KEPT_FILES else sorted(digests)[:KEPT_FILES]


def _digest(file: SourceFile) -> str:
    name = file.path.rstrip("/").rpartition("/")[2]
    return hashlib.sha256(f"{name}\n{file.rows}\n{file.bytes}".encode()).hexdigest()[:16]
