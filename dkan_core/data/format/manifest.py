"""The manifest of a prepared data set: what ``prepare`` found and wrote, read back and checked."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.download import download_file, download_shards
from dkan_core.data.format.integrity import block_count
from dkan_core.data.format.layout import Content, array_layout
from dkan_core.data.format.remote_reader import open_remote
from dkan_core.data.format.shard_writer import SHARD_FILE
from dkan_core.data.format.split_info import Count, Name, SplitInfo, WrittenSplit
from dkan_core.data.source.files import SUFFIXES
from dkan_core.data.source.sources import SourceFile
from dkan_core.errors import DataError, redact
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import read_if_there, read_regular, write_json
from dkan_core.utils.storage.paths import check_name, is_remote, local_path
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.storage.staging import finish_interrupted

# 3 has columns of lists or bit vectors, in arrays of their own; without such columns data are written as 2.
FORMAT_VERSION: Final = 2
SPARSE_VERSION: Final = 3

# Written last, so that a folder with this file is complete.
MANIFEST = "manifest.json"

# What a prepared data set consists of; the manifest arrives last.
OUTPUTS = (*SPLITS, MANIFEST)
CONTENTS = dict.fromkeys(SPLITS, SHARD_FILE)
"""Contents of the folder of a prepared data set, as patterns."""


class _Manifest(Schema):
    """Fields that ``PreparedData`` and the manifest's file share."""

    encoding_from: str | None = None
    """SHA-256 of the encoding where it is that of a model or of other data (``PrepareConfig.like``); None if fitted."""

    max_categories: int | None = None
    """As in the settings; None where no limit was set."""

    positive: dict[str, str] = Field(default_factory=dict)
    """By label, the value of its column that counts as 1; labels that are not here held 0 and 1."""

    grouped: bool = False
    """Whether each row has the number of its group, of ``dkan_core.data.source.groups``."""

    hashed: dict[str, float] = Field(default_factory=dict)
    """By column, which share of the train sample's rows has a code by its value's hash alone."""

    format_version: Literal[2, 3] = FORMAT_VERSION
    """Version of the format; 3 has columns of lists or bit vectors."""

    labels: Annotated[list[Name], Field(min_length=1)]
    """Label names, in the order of the arrays."""

    weight: Name | None
    """Weight column; null where there is none."""

    split_rule: dict[str, str]
    """How rows were split."""

    split_hints: dict[str, str] = Field(default_factory=dict)
    """Columns by which rows that were split at random could have been split, as "time", "times" and "group"."""

    seed: int
    """Decided split, sample and shuffle."""

    invalid: dict[str, dict[str, Count]]
    """Counts of NaN and infinity by column."""

    sources: list[SourceFile]
    """The source files."""


class PreparedData(_Manifest):
    """A prepared data set, as its manifest describes it."""

    preprocessor: Preprocessor
    """How columns were encoded."""

    splits: dict[str, SplitInfo]
    """By name."""

    @property
    def content(self) -> Content:
        """What the shards hold."""
        return Content(
            layout=array_layout(
                self.preprocessor, len(self.labels), weighted=self.weight is not None, grouped=self.grouped
            ),
            labels=tuple(self.labels),
            cardinalities=tuple((feature.name, feature.cardinality) for feature in self.preprocessor.coded),
            sparse_codes=sum(feature.size for feature in self.preprocessor.sparse),
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything but where the source files lay and when they were written."""
        plain = self._content()
        del plain["sources"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        # Later fields count only where they differ from their default, so that older data keep their fingerprint.
        later = ("encoding_from", "split_hints", "max_categories", "hashed", "grouped", "positive")
        kept = self.model_dump(include={*later}, exclude_defaults=True)
        return {
            **{name: kept[name] for name in later if name in kept},
            "format_version": self.format_version,
            "features": _features(self.preprocessor).model_dump(exclude_defaults=True),
            "labels": self.labels,
            "weight": self.weight,
            "splits": {name: split.model_dump(mode="json") for name, split in self.splits.items()},
            "split_rule": self.split_rule,
            "seed": self.seed,
            "invalid": self.invalid,
            "encoding": self.preprocessor.to_dict(),
            "sources": [source.model_dump() for source in self.sources],
        }

    def with_valid_in_train(self) -> "PreparedData":
        """Return the same data with the rows of valid at the end of train as well; its fingerprint differs."""
        return self.changed(splits={**self.splits, "train": self.splits["train"].joined(self.splits["valid"])})

    def changed(self, **fields: Any) -> "PreparedData":
        """Return the same data with other values of some fields."""
        # Not a copy, which would keep the cached fingerprint.
        return PreparedData(**{**{name: getattr(self, name) for name in PreparedData.model_fields}, **fields})

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {split.rows:,}" for name, split in self.splits.items())
        return f"PreparedData({rows} rows; {len(self.preprocessor.columns)} columns; labels {', '.join(self.labels)})"

    # pydantic's own prints the whole encoding.
    __str__ = __repr__

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
            **({"sparse features": len(self.preprocessor.sparse)} if self.preprocessor.sparse else {}),
            "stored as": self.preprocessor.numeric_dtype,
            "encoding": "fitted" if self.encoding_from is None else f"taken from {self.encoding_from[:12]}",
            "split rule": self.split_rule,
            **({"positive values": self.positive} if self.positive else {}),
            "source files": len(self.sources),
            "fingerprint": self.fingerprint,
        }


@contextmanager
def open_prepared(
    prepared: str | Path, *splits: str, download: bool = False, cache_bytes: int | None = None
) -> Iterator[tuple[Path, PreparedData]]:
    """Yield a local folder with prepared data, and their manifest.

    Remote rows are read when they are needed and cached in that folder, which is removed at the end of the block.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote, or of a manifest that says where the data are.
        splits: Those that are needed; no others are looked at. Default: all.
        download: Whether what is remote is downloaded whole before anything is read.
        cache_bytes: Bytes of remote data that are kept. Default: half of what is free there.

    Raises:
        DataError: There are none, or other ones than the manifest speaks of.
    """
    with ExitStack() as stack:
        folder = _local_manifest(prepared, stack)
        path = folder / MANIFEST
        file = _read_file(_text(folder), str(path))
        manifest, uri = _checked(file, str(path)), prepared
        if file.location is not None:
            uri = file.location
            folder = _local_manifest(uri, stack)
            there = read_manifest(folder)
            if there.fingerprint != manifest.fingerprint:
                raise DataError(
                    f"{uri}: holds data other than {prepared} refers to (fingerprint {there.fingerprint[:12]}, "
                    f"expected {manifest.fingerprint[:12]}); prepare them again"
                )
            manifest = there
        if is_remote(uri):
            needed = [info for name, info in manifest.splits.items() if name in (splits or manifest.splits)]
            shards = [shard for split in needed for shard in split.shards]
            # Other processes cannot read an fsspec memory:// file system, so its files are downloaded as well.
            if download or str(uri).startswith("memory://"):
                download_shards(str(uri), shards, folder)
            else:
                open_remote(str(uri), shards, folder, cache_bytes)
        yield folder, manifest


def check_is_prepared(uri: str | Path) -> None:
    """Check, before longer work, that a local folder has a manifest; URIs are not checked.

    Raises:
        DataError: There is none, or it cannot be read.
    """
    check_name(uri)
    if not is_remote(uri):
        _text(local_path(uri))


def _local_manifest(uri: str | Path, stack: ExitStack) -> Path:
    """Return a local folder with the manifest of ``uri``: the folder itself, or a copy that goes with ``stack``."""
    check_name(uri)
    if not is_remote(uri):
        return local_path(uri)
    scratch = stack.enter_context(scratch_folder())
    download_file(f"{str(uri).rstrip('/')}/{MANIFEST}", scratch / MANIFEST)
    return scratch


def save_pointer(folder: str | Path, prepared: PreparedData, location: str) -> None:
    """Write only a manifest, which says where the data are.

    Args:
        folder: Where to write the manifest; created if missing.
        prepared: The data.
        location: Folder or URI where they are.

    Raises:
        DataError: The location holds credentials, which must not be written to a file.
    """
    if redact(location) != location:
        raise DataError(f"{location}: holds credentials; give them in the environment instead")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / MANIFEST, {"location": location, **prepared.to_dict()})


def read_manifest(folder: Path) -> PreparedData:
    """Read and check the manifest of a prepared data set.

    Raises:
        DataError: There is none, it is of another format version, or it was altered.
    """
    return parse_manifest(_text(folder), str(folder / MANIFEST))


def manifest_text(uri: str | Path) -> str | None:
    """Return the text of the manifest in a folder or URI, or None where there is none.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    finish_interrupted(uri, OUTPUTS)
    return read_if_there(f"{str(uri).rstrip('/')}/{MANIFEST}")


def parse_manifest(text: str | bytes, path: str) -> PreparedData:
    """Return the manifest that ``text`` is, checked; messages name ``path``.

    Raises:
        DataError: It is none, it is of another format version, or it was altered.
    """
    return _checked(_read_file(text, path), path)


class _Version(Schema):
    """Fields of every version of the format."""

    model_config = ConfigDict(extra="ignore")

    format_version: int


class _Features(Schema):
    numeric: list[str]
    """Names of the numeric columns, in the order of the arrays."""

    categorical: list[str]
    """Names of the coded columns, in the order of the arrays."""

    sparse: list[str] = Field(default_factory=list)
    """Names of the columns of lists and bit vectors, in the order of their codes."""


def _features(encoding: Preprocessor) -> _Features:
    return _Features(
        numeric=[feature.name for feature in encoding.numeric],
        categorical=[feature.name for feature in encoding.coded],
        sparse=[feature.name for feature in encoding.sparse],
    )


class _ManifestFile(_Manifest):
    """The schema of ``manifest.json``."""

    fingerprint: str
    """SHA-256 of everything but where the source files lay and when they were written."""

    location: Name | None = None
    """Folder or URI of the data, in a manifest that only points to them."""

    format_version: Literal[2, 3]

    features: _Features
    """The columns that are features."""

    splits: dict[Literal["train", "valid", "test"], WrittenSplit]
    """By name."""

    encoding: Preprocessor
    """How columns were encoded."""

    @model_validator(mode="after")
    def _version_fits(self) -> Self:
        if (self.format_version == SPARSE_VERSION) != bool(self.encoding.sparse):
            raise ValueError(f"format_version: {SPARSE_VERSION} is for data with sparse columns, and for no others")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.features != _features(self.encoding):
            raise ValueError("features: are not the columns of encoding")
        if not self.encoding.columns:
            raise ValueError("encoding: has no column")
        for name, split in self.splits.items():
            if list(split.classes) != self.labels:
                raise ValueError(f"splits.{name}.classes are of {list(split.classes)}, labels are {self.labels}")
            for shard in split.shards:
                blocks = block_count(shard.bytes)
                if not shard.path.startswith(f"{name}/"):
                    raise ValueError(f"splits.{name}.shards: {shard.path!r} is of another split")
                if len(shard.blocks) != blocks:
                    raise ValueError(f"{shard.path}: blocks has {len(shard.blocks):,} hashes; expected {blocks:,}")
        paths = [shard.path for split in self.splits.values() for shard in split.shards]
        if len(set(paths)) < len(paths):
            raise ValueError("splits: a shard is listed twice")
        return self


def _read_file(text: str | bytes, path: str) -> _ManifestFile:
    version = read_json(_Version, text, path).format_version
    # The version is checked first, so that a file of another version is not reported as one with unknown keys.
    if version not in (FORMAT_VERSION, SPARSE_VERSION):
        raise DataError(f"{path}: has format version {version}; this dkan reads {FORMAT_VERSION} and {SPARSE_VERSION}")
    return read_json(_ManifestFile, text, path)


def _checked(file: _ManifestFile, path: str) -> PreparedData:
    """Return the manifest that a file holds, if it matches its fingerprint."""
    shared = {name: value for name, value in file if name in PreparedData.model_fields}
    shared["splits"] = {name: SplitInfo(**dict(split)) for name, split in file.splits.items()}
    prepared = PreparedData(**shared, preprocessor=file.encoding)
    if prepared.fingerprint != file.fingerprint:
        raise DataError(f"{path}: does not match its fingerprint; prepare the data again")
    return prepared


def _text(folder: Path) -> bytes:
    path = folder / MANIFEST
    # Errors here, such as a name that is too long, are reported by the read below, with the path.
    with suppress(OSError):
        if folder.is_file():
            raise no_manifest(folder)
    with suppress(FileNotFoundError):
        return read_regular(path)
    finish_interrupted(folder, OUTPUTS)
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise no_manifest(folder) from None


def no_manifest(uri: str | Path) -> DataError:
    """Return the error for a folder or URI without a manifest; raw Parquet has to be prepared first."""
    folder = Path(uri)
    names = list(folder.iterdir()) if folder.is_dir() else [folder]
    is_raw = any(name.suffix.lower() in SUFFIXES and name.is_file() for name in names)
    advice = f"prepare it first, with `dkan prepare {shlex.quote(str(uri))} --out prepared --label COLUMN`"
    hint = f"; it is raw Parquet: {advice}" if is_raw else ""
    return DataError(f"{uri}: no {MANIFEST} there; expected a folder that `dkan prepare` wrote{hint}")
