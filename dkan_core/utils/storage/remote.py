"""Folders on remote file systems: download to read them, and upload of local folders."""

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dkan_core.errors import DataError, DkanError, OutputError, redact
from dkan_core.utils.storage.failures import readable, writable
from dkan_core.utils.storage.listing import files_below
from dkan_core.utils.storage.outputs import PARTIAL
from dkan_core.utils.storage.paths import check_name, filesystem, is_remote, local_path, path_inside
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.storage.time_limits import time_limit
from dkan_core.utils.storage.transfers import get_file, put_file


@contextmanager
def local_copy(uri: str | Path) -> Iterator[Path]:
    """Yield a local folder with the content of ``uri``: the folder itself, or a download removed afterwards.

    Raises:
        DataError: There is none, or a file in it would leave the folder.
    """
    check_name(uri)
    if not is_remote(uri):
        yield local_path(uri)
        return
    with scratch_folder() as folder:
        download_folder(uri, folder)
        try:
            yield folder
        except DkanError as error:
            # The copy is gone when the message is read.
            error.args = tuple(_naming(uri, folder, each) for each in error.args)
            raise


def _naming(uri: str | Path, folder: Path, detail: object) -> object:
    return detail.replace(str(folder), redact(str(uri).rstrip("/"))) if isinstance(detail, str) else detail


def download_folder(uri: str | Path, folder: Path, names: Sequence[str] | None = None) -> None:
    """Copy the content of a remote folder into a local one.

    Args:
        uri: The remote folder.
        folder: Where its files go.
        names: Its files and folders to copy. Default: all.

    Raises:
        DataError: There is none, or a file in it would leave the folder.
    """
    fs, root = filesystem(uri)
    with readable(uri):
        fs.invalidate_cache()
        paths = files_below(fs, root)
        if not paths:
            raise DataError(f"{uri}: no such folder")
        for path in paths:
            key = _key_below(path, root, uri)
            target = path_inside(folder, key, uri)
            if names is None or key.split("/")[0] in names:
                target.parent.mkdir(parents=True, exist_ok=True)
                with readable(f"{str(uri).rstrip('/')}/{key}"):
                    get_file(fs, path, target)


def _key_below(name: str, root: str, uri: str | Path) -> str:
    """Return the part of a key below ``root``; keys of buckets and archives may start with / or hold ``..``."""
    root = root.rstrip("/")
    if not name.startswith(f"{root}/" if root else ""):
        raise DataError(f"{uri}: names a file outside of it: {name!r}")
    return name[len(root) :].removeprefix("/") if root else name


def check_writable(uri: str) -> None:
    """Raise OutputError unless files can be written to a remote folder and removed from it.

    Otherwise a command would only fail at its end, which may be hours later.
    """
    fs, root = filesystem(uri)
    mark, limit = f"{root.rstrip('/')}/{PARTIAL}", time_limit(fs)
    with writable(uri):
        fs.invalidate_cache()
        if not fs.exists(mark, **limit):  # another command's, or of one that was killed
            fs.pipe_file(mark, b"", **limit)
            fs.rm_file(mark, **limit)


def check_file_writable(uri: str | Path) -> None:
    """Raise OutputError unless a remote file can be written, as ``check_writable`` does for a folder; local ones pass.

    What is written is an empty file beside it, so that nobody takes that for the result. The error names that one, as
    credentials may allow the other.
    """
    if not is_remote(uri):
        return
    fs, path = filesystem(uri)
    mark, limit = f"{path}{PARTIAL}", time_limit(fs)
    with writable(f"{uri}{PARTIAL}"):
        fs.pipe_file(mark, b"", **limit)
    with suppress(Exception):  # credentials that may write but not remove are enough for a new file
        fs.rm_file(mark, **limit)


def upload_folder(folder: Path, uri: str, *, last: str) -> None:
    """Copy a local folder's files to a remote one, ``last`` after the rest.

    Args:
        folder: Files and folders to copy.
        uri: Where they go; folders are made.
        last: A file in ``folder``; where it exists, all other files do.

    Raises:
        OutputError: ``uri`` cannot be written.
    """
    fs, root = filesystem(uri)
    for name in sorted(_files_in(folder), key=lambda name: name == last):
        with writable(f"{uri.rstrip('/')}/{name}"):
            put_file(fs, folder / name, f"{root}/{name}")


def replace_remote(folder: Path, uri: str, names: Sequence[str]) -> None:
    """Replace an earlier result by a local folder's files; a failed upload leaves the earlier result.

    Once all is uploaded, a failure leaves the new result in the staging folder. Without an earlier result, a failure
    leaves nothing. Meanwhile an object or folder with the name of the staging folder marks what a killed command left
    as ours.

    Args:
        folder: The new result, whole.
        uri: Where it goes.
        names: What a result consists of; the last one arrives after the rest, and is removed before it.
    """
    fs, root = filesystem(uri)
    root, last, limit = root.rstrip("/"), names[-1], time_limit(fs)
    with writable(uri):
        fs.invalidate_cache()
        if fs.exists(f"{root}/{last}", **limit):
            with _staged(fs, folder, root, uri) as new:
                fs.rm_file(f"{root}/{last}", **limit)
                _copy_staged(fs, root, new - {last})
                for name in names:
                    _remove_files(fs, f"{root}/{name}", {f"{root}/{each}" for each in new})
                _copy_staged(fs, root, new & {last})
            return
        aside = f"{root}/{PARTIAL}"
        # Left by a replacement that was killed, it may be as large as the result; in HDFS no file can take its place.
        mark = f"{aside}/mark" if fs.isdir(aside) else aside
        fs.pipe_file(mark, b"", **limit)
        _remove_files(fs, aside, {mark})
        _remove_remote(fs, root, reversed(names))
        try:
            upload_folder(folder, uri, last=last)
        except BaseException:
            _remove_remote(fs, root, reversed(names))
            raise
        finally:
            fs.rm_file(mark, **limit)


def exchange_remote(folder: Path, uri: str, *, last: str) -> None:
    """Replace remote files by those of a local folder; a failed upload leaves the remote files as they are.

    Once all is uploaded, a failure leaves the new files in the staging folder.

    Args:
        folder: Files alone, no folders.
        uri: Where they go.
        last: The file that is copied after the rest.
    """
    fs, root = filesystem(uri)
    root = root.rstrip("/")
    with writable(uri):
        with _staged(fs, folder, root, uri) as names:
            _copy_staged(fs, root, names - {last})
            _copy_staged(fs, root, names & {last})
        _remove_files(fs, root, {f"{root}/{name}" for name in names})


@contextmanager
def _staged(fs: Any, folder: Path, root: str, uri: str) -> Iterator[set[str]]:
    """Keep a local folder's files in the staging folder of a remote one; yield their names.

    They are removed if the block ends well: if it fails, they may be the only ones that are whole.
    """
    aside = f"{root}/{PARTIAL}"
    names = _files_in(folder)
    try:
        for name in sorted(names):
            put_file(fs, folder / name, f"{aside}/{name}")
    except BaseException:
        _remove_files(fs, aside)
        raise
    try:
        with writable(uri):
            yield names
    except OutputError as error:
        raise OutputError(f"{error}; the new files are whole in {uri.rstrip('/')}/{PARTIAL}") from error
    _remove_files(fs, aside)


def _copy_staged(fs: Any, root: str, names: Iterable[str]) -> None:
    # Copied within the bucket, which does not depend on the connection.
    for name in sorted(names):
        fs.cp_file(f"{root}/{PARTIAL}/{name}", f"{root}/{name}")


def _files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _remove_files(fs: Any, root: str, keep: Collection[str] = ()) -> None:
    """Remove a file, or the files below a folder, but for some paths."""
    fs.invalidate_cache()
    # Listing many files may take long, so the server is first asked something short.
    if not fs.exists(root, **time_limit(fs)):
        return
    for path in files_below(fs, root):
        if path not in keep:
            fs.rm_file(path, **time_limit(fs))


def _remove_remote(fs: Any, root: str, names: Iterable[str]) -> None:
    for path in (f"{root}/{name}" for name in names):
        _remove_files(fs, path)
        # In HDFS, folders stay when they are empty, and the next command would take them for somebody else's.
        fs.invalidate_cache()
        if fs.exists(path, **time_limit(fs)):
            fs.rm(glob.escape(path), recursive=True)
