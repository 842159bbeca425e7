"""Folders on remote file systems: copied here to be read, and local ones brought there."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dkan_core.errors import DataError
from dkan_core.utils.storage.failures import readable, writable
from dkan_core.utils.storage.outputs import PARTIAL
from dkan_core.utils.storage.paths import check_name, filesystem, is_remote, local_path, path_inside


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
    fs, root = filesystem(uri)
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        with readable(uri):
            fs.invalidate_cache()
            names = fs.find(root)
            if not names:
                raise DataError(f"{uri}: no such folder")
            for name in names:
                target = path_inside(Path(folder), _key_below(name, root, uri), uri)
                target.parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(name, str(target))
        yield Path(folder)


def _key_below(name: str, root: str, uri: str | Path) -> str:
    """Return the part of a key below ``root``; keys of buckets and archives may start with / or hold ``..``."""
    root = root.rstrip("/")
    if not name.startswith(f"{root}/" if root else ""):
        raise DataError(f"{uri}: names a file outside of it: {name!r}")
    return name[len(root) :].removeprefix("/") if root else name


def upload_folder(folder: Path, uri: str, *, last: str) -> None:
    """Copy a local folder's files to a remote one, ``last`` after the rest.

    Args:
        folder: Files and folders to copy.
        uri: Where they go; folders are made.
        last: A file in ``folder``: whoever finds it there finds all.

    Raises:
        OutputError: ``uri`` cannot be written.
    """
    fs, root = filesystem(uri)
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path == folder / last)
    with writable(uri):
        for path in files:
            fs.put_file(str(path), f"{root}/{path.relative_to(folder).as_posix()}")


def replace_remote(folder: Path, uri: str, names: Sequence[str]) -> None:
    """Put a local folder's files in the place of an earlier result; a failure leaves nothing.

    An object named as the staging folder is there meanwhile and marks what a killed command left as ours.

    Args:
        folder: The new result, whole.
        uri: Where it goes.
        names: What a result consists of; the last one arrives after the rest, and is removed before it.
    """
    fs, root = filesystem(uri)
    mark = f"{root}/{PARTIAL}"
    with writable(uri):
        fs.pipe_file(mark, b"")
        _remove_remote(fs, root, reversed(names))
        try:
            upload_folder(folder, uri, last=names[-1])
        except BaseException:
            _remove_remote(fs, root, reversed(names))
            raise
        finally:
            fs.rm_file(mark)


def exchange_remote(folder: Path, uri: str, *, last: str) -> None:
    """Put a local folder's files in the place of others; a failure to bring them there leaves the others as they are.

    Args:
        folder: Files alone, no folders.
        uri: Where they go.
        last: The file that is copied after the rest.
    """
    fs, root = filesystem(uri)
    root = root.rstrip("/")
    aside = f"{root}/{PARTIAL}"
    with writable(uri):
        names = sorted((path.name for path in folder.iterdir()), key=lambda name: name == last)
        try:
            for name in names:
                fs.put_file(str(folder / name), f"{aside}/{name}")
            for name in names:
                # Copied within the bucket, where a lost connection no longer matters.
                fs.cp_file(f"{aside}/{name}", f"{root}/{name}")
        finally:
            fs.invalidate_cache()
            for path in fs.find(aside):
                fs.rm_file(path)
        for path in fs.find(root):
            if path.removeprefix(f"{root}/") not in names:
                fs.rm_file(path)


def _remove_remote(fs: Any, root: str, names: Iterable[str]) -> None:
    fs.invalidate_cache()
    for name in names:
        if fs.exists(f"{root}/{name}"):
            fs.rm(f"{root}/{name}", recursive=True)
