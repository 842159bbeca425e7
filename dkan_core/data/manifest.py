"""The manifest of a prepared data set: what ``prepare`` found and wrote, read back and checked."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dkan_core.data.encoding import Preprocessor
from dkan_core.data.schema import SourceFile
from dkan_core.data.shards import Shard
from dkan_core.errors import DataError
from dkan_core.storage import local_copy, write_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """One split: its rows, how often each label is 0, 1 and not measured, and its shards."""

    rows: int
    classes: dict[str, dict[str, int]]
    shards: list[Shard]


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """What ``manifest.json`` holds."""

    preprocessor: Preprocessor
    labels: list[str]
    weight: str | None
    splits: dict[str, SplitInfo]
    split_rule: dict[str, Any]
    seed: int
    invalid: dict[str, dict[str, int]]
    sources: list[SourceFile]
    encoding_from: str | None = None
    """Digest of the encoding where it is that of a model or of other data (``PrepareConfig.like``); None if fitted."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything but where the source files lay and when they were written."""
        plain = self._content()
        del plain["sources"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        # Only where there is one, so that the fingerprints of fitted data stay.
        taken = {} if self.encoding_from is None else {"encoding_from": self.encoding_from}
        return {
            **taken,
            "format_version": FORMAT_VERSION,
            "features": {
                "numeric": [feature.name for feature in self.preprocessor.numeric],
                "categorical": [feature.name for feature in self.preprocessor.coded],
            },
            "labels": self.labels,
            "weight": self.weight,
            "splits": {name: asdict(split) for name, split in self.splits.items()},
            "split_rule": self.split_rule,
            "seed": self.seed,
            "invalid": self.invalid,
            "encoding": self.preprocessor.to_dict(),
            "sources": [asdict(source) for source in self.sources],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return {"fingerprint": self.fingerprint, **self._content()}

    def summary(self) -> dict[str, Any]:
        """Return the few facts that a report shows."""
        positives = {
            name: {label: counts["1"] for label, counts in split.classes.items()} for name, split in self.splits.items()
        }
        return {
            "rows": {name: split.rows for name, split in self.splits.items()},
            "positives": positives,
            "numeric features": len(self.preprocessor.numeric),
            "coded features": len(self.preprocessor.coded),
            "stored as": self.preprocessor.numeric_dtype,
            "encoding": "fitted" if self.encoding_from is None else f"taken from {self.encoding_from[:12]}",
            "split rule": self.split_rule,
            "source files": len(self.sources),
            "fingerprint": self.fingerprint,
        }


@contextmanager
def open_prepared(prepared: str | Path) -> Iterator[tuple[Path, PreparedData]]:
    """Yield a local folder with prepared data, and their manifest; what is remote is downloaded and removed afterwards.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote, or of a manifest that says where the data are.

    Raises:
        DataError: There are none, or other ones than the manifest speaks of.
    """
    with local_copy(prepared) as folder:
        manifest, location = read_manifest(folder), json.loads(_text(folder)).get("location")
        if location is None:
            yield folder, manifest
            return
    with local_copy(location) as folder:
        there = read_manifest(folder)
        if there.fingerprint != manifest.fingerprint:
            raise DataError(
                f"{location}: holds other data than {prepared} speaks of (fingerprint {there.fingerprint[:12]}, "
                f"expected {manifest.fingerprint[:12]}); prepare them again"
            )
        yield folder, there


def save_pointer(folder: str | Path, prepared: PreparedData, location: str) -> None:
    """Write a manifest alone, which says where the data are."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / MANIFEST, {"location": location, **prepared.to_dict()})


def read_manifest(folder: Path) -> PreparedData:
    """Read and check the manifest of a prepared data set.

    Raises:
        DataError: There is none, it is of another format version, or it was altered.
    """
    return parse_manifest(_text(folder), str(folder / MANIFEST))


def parse_manifest(text: str, path: str) -> PreparedData:
    """Return the manifest that ``text`` is, checked; messages name ``path``.

    Raises:
        DataError: It is none, it is of another format version, or it was altered.
    """
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    version = plain.get("format_version") if isinstance(plain, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(f"{path}: has format version {version}; this dkan reads {FORMAT_VERSION}")
    try:
        prepared = PreparedData(
            preprocessor=Preprocessor.from_dict(plain["encoding"]),
            labels=plain["labels"],
            weight=plain["weight"],
            splits={
                name: SplitInfo(
                    rows=split["rows"], classes=split["classes"], shards=[Shard(**shard) for shard in split["shards"]]
                )
                for name, split in plain["splits"].items()
            },
            split_rule=plain["split_rule"],
            seed=plain["seed"],
            invalid=plain["invalid"],
            sources=[SourceFile(**source) for source in plain["sources"]],
            encoding_from=plain.get("encoding_from"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: is no manifest of dkan ({error})") from error
    if prepared.fingerprint != plain.get("fingerprint"):
        raise DataError(f"{path}: does not match its fingerprint; prepare the data again")
    return prepared


def _text(folder: Path) -> str:
    path = folder / MANIFEST
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{folder}: no {MANIFEST} there; expected a folder that `dkan prepare` wrote") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
