"""The source files: Parquet that paths, folders, globs and fsspec URIs name."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dkan_core.errors import DataError
from dkan_core.storage import filesystem, is_remote, readable


def find_parquet(sources: Sequence[str | Path]) -> list[str]:
    """List the Parquet files that paths, folders, globs and fsspec URIs name, sorted and without repeats.

    Raises:
        DataError: A source does not exist or holds no Parquet file.
    """
    found: set[str] = set()
    for source in sources:
        files = _list_source(str(source))
        if not files:
            raise DataError(f"{source}: no Parquet files there (names must end in .parquet or .pq)")
        found.update(files)
    if not found:
        raise DataError("no source given; name a Parquet file, a folder, a glob or an fsspec URI")
    return sorted(found)


def _list_source(source: str) -> list[str]:
    fs, path = filesystem(source)
    with readable(source):
        fs.invalidate_cache()  # others may have written there since this process looked
        if fs.isdir(path):
            names = [name for name in fs.find(path) if not _is_hidden(name.removeprefix(path))]
        elif fs.exists(path):
            return [fs.unstrip_protocol(path) if is_remote(source) else path]
        elif any(mark in path for mark in "*?["):
            names = [name for name in fs.glob(path) if not _is_hidden(Path(name).name)]
        else:
            raise DataError(f"{source}: no such file or folder")
    kept = [name for name in names if name.endswith((".parquet", ".pq"))]
    return [fs.unstrip_protocol(name) if is_remote(source) else name for name in kept]


def _is_hidden(path: str) -> bool:
    """Tell whether a part of a path starts as those do that writers use for unfinished and accompanying files."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def open_input(uri: str) -> Any:
    """Open ``uri`` for binary reading."""
    fs, path = filesystem(uri)
    with readable(uri):
        return fs.open(path, "rb")


def stamp(uri: str) -> tuple[int, str]:
    """Return size in bytes and modification stamp (text, empty when unknown) of a file."""
    fs, path = filesystem(uri)
    with readable(uri):
        fs.invalidate_cache()
        info = fs.info(path)
    for key in ("mtime", "LastModified", "last_modified", "updated"):
        if key in info:
            return int(info["size"]), str(info[key])
    return int(info["size"]), ""


def fingerprint_sources(sources: str | Sequence[str | Path], settings: str = "") -> str:
    """Return a text that changes with the source files: names, sizes and modification stamps; nothing is read.

    Args:
        sources: Paths, folders, globs and fsspec URIs; in one text, separated by commas or line ends.
        settings: What else is to change it.

    Raises:
        DataError: A source does not exist or holds no Parquet file.
    """
    digest = hashlib.sha256(settings.encode())
    for path in find_parquet(listed(sources)):
        digest.update(json.dumps([path, *stamp(path)]).encode())
    return digest.hexdigest()[:16]


def listed(sources: str | Path | Sequence[str | Path]) -> list[str]:
    r"""Return sources one by one.

    >>> listed("s3://bucket/a, s3://bucket/b\ns3://bucket/c")
    ['s3://bucket/a', 's3://bucket/b', 's3://bucket/c']
    """
    if isinstance(sources, str):
        return [part.strip() for part in sources.replace("\n", ",").split(",") if part.strip()]
    return [str(sources)] if isinstance(sources, Path) else [str(source) for source in sources]
