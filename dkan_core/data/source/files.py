"""The source files: Parquet that paths, folders, globs and fsspec URIs name."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from dkan_core.config.loading import separated
from dkan_core.data.source.folders import folder_values
from dkan_core.data.source.frames import is_frame
from dkan_core.data.source.text_files import TEXTS, csv_hint, text_error
from dkan_core.errors import DataError
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.listing import files_below
from dkan_core.utils.storage.paths import check_name, filesystem, is_remote

# Suffixes that writers use: Spark, pandas and DuckDB the first, Hive and others the shorter ones.
SUFFIXES = (".parquet", ".parq", ".pq")
# In a path, the beginning of what a glob may match in several ways.
WILDCARD = re.compile(r"[*?[]")
# Their file systems close the archive as soon as they are not used, though files in it are open.
ARCHIVES = ("zip://", "tar://", "libarchive://")
# The first bytes of every Parquet file.
MAGIC = b"PAR1"

# Files of a bucket that are opened or looked up at once: each takes some round trips of tens of milliseconds.
AT_ONCE = 16

# Tables whose log says which of their files are current, by a part of a path in their folder.
TABLES = {"/_delta_log/": "Delta Lake", "/.hoodie/": "Hudi", ".metadata.json": "Iceberg"}
# What a folder of prepared data holds.
PREPARED = ("manifest.json", "train")

logger = logging.getLogger(__name__)


def source_paths(sources: Any) -> list[str]:
    """Return the paths and URIs that a caller names, one or several.

    Raises:
        DataError: It is something else, such as a frame.
    """
    # Iterating over a frame would yield its column names.
    is_one = isinstance(sources, str | os.PathLike) or is_frame(sources) or not isinstance(sources, Iterable)
    chosen = [sources] if is_one else [*sources]
    wrong = [each for each in chosen if not isinstance(each, str | os.PathLike)]
    if wrong:
        raise DataError(
            f"expected Parquet files, folders, globs or URIs, got a value of type {type(wrong[0]).__name__}; of rows "
            "in memory, predict takes a pandas, polars or Arrow table, and FastKANClassifier is trained on one"
        )
    return [str(each) for each in chosen]


def find_parquet(sources: Sequence[str | Path]) -> list[str]:
    """List the Parquet files that paths, folders, globs and fsspec URIs name, sorted and without repeats.

    A local file that is named twice, by other spellings or links, is taken once. What is left out is logged.

    Raises:
        DataError: A source does not exist, may not be read, or holds no Parquet file.
    """
    return list(find_partitioned(sources))


def find_in_order(sources: Sequence[str | Path]) -> list[str]:
    """List Parquet files as ``find_parquet`` does, in the order in which the sources are named."""
    return _without_repeats([path for source in sources for path in find_parquet([source])])


def find_partitioned(sources: Sequence[str | Path]) -> dict[str, list[str]]:
    """List Parquet files as ``find_parquet`` does, each with the columns in the names of folders below its source."""
    found: dict[str, list[str]] = {}
    for source in sources:
        files = _list_source(str(source))
        if not files:
            hint = _prepared_hint(str(source)) or csv_hint(str(source))
            raise DataError(f"{source}: no Parquet files there (names must end in {', '.join(SUFFIXES)}){hint}")
        above = folder_values(_begin(str(source), files))
        found |= {path: [name for name in folder_values(path) if name not in above] for path in files}
    if not found:
        raise DataError("no source given; name a Parquet file, a folder, a glob or an fsspec URI")
    return {path: found[path] for path in _without_repeats(sorted(found))}


def _prepared_hint(source: str) -> str:
    """Return a hint for a folder that was given as raw data but holds prepared data; empty for others."""
    fs, path = filesystem(source)
    is_prepared = all(fs.exists(f"{path.rstrip('/')}/{name}") for name in PREPARED)
    return "; it is prepared data: name the raw Parquet that it was made of, or other rows" if is_prepared else ""


def _begin(source: str, files: Sequence[str]) -> str:
    """Return a path in the folder that a source names, cut before any wildcard, or the path of the file it names."""
    _, path = filesystem(source)
    if wildcard := WILDCARD.search(path):
        return path[: wildcard.start()]
    return path if files[0].endswith(path) else f"{path}/file"


def _without_repeats(paths: Sequence[str]) -> list[str]:
    """Leave out files that are the same file under another link or spelling: their rows would count twice."""
    first: dict[object, str] = {}
    for path in paths:
        with readable(path):
            key = path if is_remote(path) else (os.stat(path).st_dev, os.stat(path).st_ino)  # noqa: PTH116
        taken = first.setdefault(key, path)
        if taken != path:
            logger.warning("%s: left out, it is the same file as %s", path, taken)
    return list(first.values())


def _list_source(source: str) -> list[str]:
    check_name(source)
    if source.startswith(ARCHIVES):
        raise DataError(f"{source}: rows are not read from archives; unpack it")
    fs, path = filesystem(source)
    with readable(source):
        fs.invalidate_cache()  # others may have written there since this process looked
        if fs.isdir(path):
            names = _files_below(fs, path, source)
        elif fs.exists(path):
            if source.lower().endswith(TEXTS) and not _begins_as_parquet(fs, path):
                raise text_error(source)
            return [fs.unstrip_protocol(path) if is_remote(source) else path]
        elif WILDCARD.search(path):
            names = _matches(fs, path, source)
        else:
            raise DataError(f"{source}: no such file or folder")
        kept = [name for name in names if _is_parquet(fs, name)]
    skipped = sorted(set(names).difference(kept))
    if skipped:
        logger.warning("%s: skipped %s: not Parquet, such as %s", source, counted(len(skipped), "file"), skipped[0])
    return [fs.unstrip_protocol(name) if is_remote(source) else name for name in kept]


def takes_in(source: str, folder: str, names: Iterable[str]) -> bool:
    """Return whether a source, a folder or glob, would list one of the files that are to be written to a folder.

    Args:
        source: As ``find_parquet`` takes it.
        folder: Path or URI, absent or not.
        names: Of Parquet files, relative to the folder.
    """
    (fs, root), (other, target) = filesystem(source), filesystem(folder)
    target = _without_links(fs, target)
    paths = [PurePosixPath(target, name) for name in names] if fs == other else []
    if fs.isdir(root):
        above = PurePosixPath(_without_links(fs, root))
        return any(path.is_relative_to(above) and not _is_hidden(str(path.relative_to(above))) for path in paths)
    wildcard = WILDCARD.search(root)
    if wildcard is None or fs.exists(root):
        return False
    begin = root[: wildcard.start()].rpartition("/")[0]
    wanted = _without_links(fs, begin) + root[len(begin) :]
    pattern = re.compile(glob_translate(wanted))
    # A glob also lists the files inside the folders that it matches.
    return any(
        pattern.match(str(above))
        and not _is_hidden_match(str(above), wanted)
        and not any(map(_is_hidden, path.relative_to(above).parts))
        for path in paths
        for above in (path, *path.parents)
    )


def _without_links(fs: Any, path: str) -> str:
    return os.path.realpath(path) if isinstance(fs, LocalFileSystem) else path


def _matches(fs: Any, path: str, source: str) -> list[str]:
    """List the files that a glob matches, and those in the folders that it matches."""
    names: dict[str, None] = {}
    for name, info in fs.glob(path, detail=True).items():
        if _is_hidden_match(name, path):
            continue
        # glob says nothing about the target of a local link, so the file system is asked.
        is_folder = info["type"] != "file" and fs.isdir(name)
        names |= dict.fromkeys(_files_below(fs, name.rstrip("/"), source) if is_folder else [name])
    return list(names)


def _files_below(fs: Any, folder: str, source: str) -> list[str]:
    names = files_below(fs, folder) if is_remote(source) else _walk(folder)
    _warn_of_table(names, source)
    return [name for name in names if not _is_hidden(name.removeprefix(folder))]


def _warn_of_table(names: Iterable[str], source: str) -> None:
    """Warn where the files of a folder belong to a table that may have replaced some of them."""
    for kind in dict.fromkeys(kind for name in names for mark, kind in TABLES.items() if mark in name):
        logger.warning(
            "%s: is a table of %s: deleted or updated rows that are still in its files are read as well; "
            "write the current rows to Parquet first",
            source,
            kind,
        )


def _walk(folder: str) -> list[str]:
    """List the files in a local folder and in those that it links to; one that may not be read is named."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})")

    files, seen = [], {os.path.realpath(folder)}
    for path, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        files += [str(Path(path) / name) for name in names]
        # Sorted, so that the same one of two links to a folder is always followed.
        real = {name: os.path.realpath(Path(path) / name) for name in sorted(folders)}
        folders[:] = [name for name in real if real[name] not in seen]  # a link may lead back up
        seen.update(real.values())
    return files


def _is_parquet(fs: Any, name: str) -> bool:
    """Return whether a file is Parquet: by its suffix or, where it has none, by its first bytes."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix or not fs.isfile(name):
        return suffix in SUFFIXES
    return _begins_as_parquet(fs, name)


def _begins_as_parquet(fs: Any, name: str) -> bool:
    head: bytes = fs.cat_file(name, start=0, end=len(MAGIC))
    return head == MAGIC


def _is_hidden(path: str) -> bool:
    """Return whether a part of a path begins with a character that writers use for unfinished and auxiliary files."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _is_hidden_match(path: str, pattern: str) -> bool:
    """Return whether wildcards match a hidden file or folder; hidden ones that the pattern names are wanted."""
    return any(map(_is_hidden, {*path.split("/")}.difference(pattern.split("/"))))


def stamp(uri: str) -> tuple[int, str]:
    """Return size in bytes and modification stamp (text, empty when unknown) of a file."""
    fs, path = filesystem(uri)
    with readable(uri):
        fs.invalidate_cache()
        info = fs.info(path)
    # The keys of local files, S3, Azure and Google Cloud.
    for key in ("mtime", "LastModified", "last_modified", "updated"):
        if key in info:
            return int(info["size"]), str(info[key])
    return int(info["size"]), ""


def stamps(uris: Sequence[str]) -> list[tuple[int, str]]:
    """Return the ``stamp`` of each file; several are looked up in a bucket at once."""
    if not any(map(is_remote, uris)):
        return list(map(stamp, uris))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dkan-stamp") as pool:
        return list(pool.map(stamp, uris))


def whole_second(modified: str) -> str:
    """Cut a modification stamp at the second: listing a bucket may give more digits than looking up one object.

    >>> {whole_second(text) for text in ("2026-11-21 20:00:00.123000+00:00", "2026-11-21 20:00:00+00:00")}
    {'2026-11-21 20:00:00'}
    """
    return modified.split(".")[0].split("+")[0]


def fingerprint_sources(
    sources: str | Path | Sequence[str | Path], settings: str = "", *, model: str | Path | None = None
) -> str:
    """Return a string that changes with the names, sizes and modification times of source files; none is read.

    Args:
        sources: Paths, folders, globs and fsspec URIs; in one text, separated by commas or line ends.
        settings: Anything else that is to change it.
        model: Folder or URI of a model whose files are to change it as well.

    Raises:
        DataError: A source does not exist or holds no Parquet file; or there is no such model.
    """
    digest = hashlib.sha256(settings.encode())
    paths = find_parquet(split_sources(sources)) + (_list_files(str(model)) if model else [])
    for path, found in zip(paths, stamps(paths), strict=True):
        digest.update(json.dumps([path, *found]).encode())
    return digest.hexdigest()[:16]


def _list_files(folder: str) -> list[str]:
    check_name(folder)
    fs, path = filesystem(folder)
    with readable(folder):
        fs.invalidate_cache()
        names = sorted(files_below(fs, path))
    if not names:
        raise DataError(f"{folder}: no such folder, or an empty one")
    return [fs.unstrip_protocol(name) if is_remote(folder) else name for name in names]


def split_sources(sources: str | Path | Sequence[str | Path]) -> list[str]:
    r"""Return sources as a list; a string, such as a field of a form, is split at commas and line ends.

    >>> split_sources("s3://bucket/a, s3://bucket/b\ns3://bucket/c")
    ['s3://bucket/a', 's3://bucket/b', 's3://bucket/c']
    """
    return separated(sources) if isinstance(sources, str) else source_paths(sources)
