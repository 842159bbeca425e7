"""Paths and fsspec URIs: finding inputs, and outputs that appear whole or not at all."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from dkan_core.errors import DataError, OutputError

PARTIAL = ".partial"


def is_remote(uri: str | Path) -> bool:
    """Tell whether ``uri`` names something that is not on a local file system.

    >>> is_remote("s3://bucket/key"), is_remote("file:///tmp/x"), is_remote("data")
    (True, False, False)
    """
    text = str(uri)
    return "://" in text and not text.startswith(("file://", "local://"))


def local_path(uri: str | Path) -> Path:
    """Return the local path that ``uri`` names."""
    return Path(str(uri).removeprefix("file://").removeprefix("local://"))


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
    fs, path = _filesystem(source)
    try:
        if any(mark in path for mark in "*?["):
            names = fs.glob(path)
        elif fs.isdir(path):
            names = fs.find(path)
        elif fs.exists(path):
            return [fs.unstrip_protocol(path) if is_remote(source) else path]
        else:
            raise DataError(f"{source}: no such file or folder")
    except (OSError, PermissionError) as error:
        raise DataError(f"{source}: cannot be listed ({error})") from error
    kept = [name for name in names if name.endswith((".parquet", ".pq")) and not Path(name).name.startswith(("_", "."))]
    return [fs.unstrip_protocol(name) if is_remote(source) else name for name in kept]


def _filesystem(uri: str) -> tuple[Any, str]:
    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise DataError(f"{uri}: {error} (extras: dkan[s3], dkan[gcs])") from error
    return fs, path


def open_input(uri: str) -> Any:
    """Open ``uri`` for binary reading."""
    fs, path = _filesystem(uri)
    return fs.open(path, "rb")


def stamp(uri: str) -> tuple[int, str]:
    """Return size in bytes and modification stamp (text, empty when unknown) of a file."""
    fs, path = _filesystem(uri)
    info = fs.info(path)
    for key in ("mtime", "LastModified", "last_modified", "updated"):
        if key in info:
            return int(info["size"]), str(info[key])
    return int(info["size"]), ""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file aside, flush it to disk and rename it into place."""
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(path, error) from error
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically; NaN and infinity are refused."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def output_error(path: str | Path, error: OSError) -> OutputError:
    """Describe why ``path`` could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(f"{path}: the disk is full; nothing half-written was left")
    return OutputError(f"{path}: cannot be written ({error.strerror or error})")


def check_free(out: str | Path, *, ours: Collection[str], overwrite: bool) -> None:
    """Raise OutputError unless ``out`` is absent, empty, or holds a result of ours that may be overwritten.

    Args:
        out: Local path or fsspec URI of a folder.
        ours: Names that the command itself writes there.
        overwrite: Whether an earlier result may be replaced.
    """
    names = _entries(out) - {PARTIAL}
    foreign = sorted(names - set(ours))
    if foreign:
        raise OutputError(f"{out}: already holds something else ({foreign[0]}); choose an empty or new folder")
    if names and not overwrite:
        raise OutputError(f"{out}: already holds an earlier result; pass --overwrite or choose another folder")


def _entries(out: str | Path) -> set[str]:
    if is_remote(out):
        fs, path = _filesystem(str(out))
        return {name.rstrip("/").rsplit("/", 1)[-1] for name in fs.ls(path, detail=False)} if fs.exists(path) else set()
    folder = local_path(out)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{out}: is a file; expected a folder")
    return set(os.listdir(folder)) if folder.exists() else set()


@contextmanager
def staged_folder(out: str | Path, *, names: Sequence[str], overwrite: bool) -> Iterator[Path]:
    """Yield a folder to write into; what is in it appears in ``out`` when the block ends well, else nothing does.

    Args:
        out: Local path or fsspec URI of a folder that is absent, empty, or holds an earlier result.
        names: What the command writes there. The last one arrives after the rest: whoever finds it finds the whole.
        overwrite: Whether an earlier result may be replaced.
    """
    check_free(out, ours=names, overwrite=overwrite)
    if is_remote(out):
        with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
            yield Path(folder)
            upload_folder(Path(folder), str(out), last=names[-1])
        return
    target = local_path(out)
    existed = target.exists()
    staging = target / PARTIAL
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
        _move_into(staging, target, names)
    except OSError as error:
        raise output_error(out, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not existed and target.exists() and not any(target.iterdir()):
            target.rmdir()


def _move_into(staging: Path, target: Path, names: Sequence[str]) -> None:
    for name in reversed(names):
        remove(target / name)
    sync_folder(staging)
    for name in names:
        if (staging / name).exists():
            (staging / name).replace(target / name)
    sync_folder(target)


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def staged_file(out: str | Path) -> Iterator[Path]:
    """Yield a file to write; it becomes ``out`` when the block ends well, else nothing does."""
    target = Path(tempfile.mkdtemp(prefix="dkan-")) / "file" if is_remote(out) else local_path(out)
    aside = target.with_name(f".{target.name}.partial")
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        if is_remote(out):
            fs, path = _filesystem(str(out))
            fs.put_file(str(aside), path)
        else:
            aside.replace(target)
    except OSError as error:
        raise output_error(out, error) from error
    finally:
        aside.unlink(missing_ok=True)
        if is_remote(out):
            target.parent.rmdir()


def upload_folder(folder: Path, uri: str, *, last: str) -> None:
    """Copy a local folder's files to a remote one, ``last`` after the rest."""
    fs, root = _filesystem(uri)
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == last)
    try:
        for path in files:
            fs.put_file(str(path), f"{root}/{path.relative_to(folder).as_posix()}")
    except OSError as error:
        raise OutputError(f"{uri}: cannot be written ({error})") from error


@contextmanager
def local_copy(uri: str | Path) -> Iterator[Path]:
    """Yield a local folder with the content of ``uri``: the folder itself, or a download removed afterwards."""
    if not is_remote(uri):
        yield local_path(uri)
        return
    fs, root = _filesystem(str(uri))
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        names = fs.find(root)
        if not names:
            raise DataError(f"{uri}: no such folder")
        for name in names:
            target = Path(folder) / Path(name).relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(name, str(target))
        yield Path(folder)
