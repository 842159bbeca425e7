"""Paths and fsspec URIs: outputs appear whole or not at all, and what cannot be reached is a named error."""

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from dkan_core.errors import DataError, DkanError, OutputError, UserError
from dkan_core.locks import LOCK, folder_lock, held_aside, is_aside

PARTIAL = ".partial"
HEAD_BYTES = 1 << 16
"""Enough of a file to recognise it by."""


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


def filesystem(uri: str | Path) -> tuple[Any, str]:
    """Return the fsspec file system of ``uri`` and the path in it.

    Raises:
        DataError: The scheme is unknown, or its package is not installed.
    """
    try:
        fs, path = fsspec.core.url_to_fs(str(uri))
    except (ImportError, ValueError) as error:
        raise DataError(f"{uri}: {error} (extras: dkan[s3], dkan[gcs])") from error
    return fs, path


def check_name(uri: str | Path) -> None:
    """Raise DataError where ``uri`` can name no file or folder; an empty text would mean the current folder."""
    text = str(uri)
    if not text.strip() or "\0" in text:
        raise DataError(f"{text!r} names no file or folder")


def path_inside(folder: Path, name: str, where: str | Path = "") -> Path:
    """Return the path of a name that was read from a file, in the folder of that file.

    Args:
        folder: Where it is to lie.
        name: As it was read, relative to the folder.
        where: What messages call the folder.

    Raises:
        DataError: It leads out of the folder, by itself or by a symbolic link.

    >>> path_inside(Path("/data"), "train/a")
    PosixPath('/data/train/a')
    >>> path_inside(Path("/data"), "../a")
    Traceback (most recent call last):
    dkan_core.errors.DataError: /data: names a file outside of it: '../a'
    """
    parts, outside = PurePosixPath(name), DataError(f"{where or folder}: names a file outside of it: {name!r}")
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\0" in name:
        raise outside
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise outside
    return path


def check_regular(path: str | Path) -> None:
    """Raise DataError unless ``path`` is a regular file: a pipe or device may never end.

    Raises:
        DataError: It is none, or cannot be reached.
    """
    with readable(path):
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise DataError(f"{path}: is no regular file")


def read_regular(path: Path) -> bytes:
    """Return the content of a local file; a pipe or device, which may never end, is refused.

    Raises:
        DataError: It cannot be read or is no regular file.
        FileNotFoundError: There is none.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise DataError(f"{path}: is no regular file")
        with os.fdopen(handle, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


@contextmanager
def readable(uri: str | Path) -> Iterator[None]:
    """Turn a failure to reach ``uri`` into a DataError."""
    try:
        yield
    except DkanError:
        raise
    except Exception as error:
        # Remote file systems raise what their client library raises: missing credentials are no OSError.
        if not is_remote(uri) and not isinstance(error, OSError):
            raise
        raise DataError(f"{uri}: cannot be read ({_reason(error)})") from error


@contextmanager
def writable(uri: str | Path) -> Iterator[None]:
    """Turn a failure to write to a remote ``uri`` into an OutputError."""
    try:
        yield
    except DkanError:
        raise
    except Exception as error:
        raise OutputError(f"{uri}: cannot be written ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file aside, flush it to disk and rename it into place."""
    data = content.encode() if isinstance(content, str) else content
    try:
        with held_aside(path) as aside:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
    except OSError as error:
        raise output_error(path, error) from error
    sync_folder(path.parent)


def read_if_there(uri: str) -> str | None:
    """Return the text of a file, local or remote, or None where there is none.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    fs, path = filesystem(uri)
    with readable(uri):
        fs.invalidate_cache()
        content: bytes | None = fs.cat_file(path) if fs.exists(path) else None
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{uri}: is no text ({error})") from error


def check_file_is_ours(uri: str, *, beginning: bytes, mark: bytes = b"") -> None:
    """Raise OutputError unless a file is absent, empty, or recognisably what a command of ours wrote.

    Args:
        uri: Path or fsspec URI of a file that would be replaced or removed.
        beginning: What ours begins with.
        mark: What else is in the first kilobytes of ours.
    """
    fs, path = filesystem(uri)
    with writable(uri):
        fs.invalidate_cache()
        if not fs.exists(path):
            return
        head = fs.cat_file(path, end=HEAD_BYTES) if fs.isfile(path) else None
    if head is None or (head and not (beginning.startswith(head[: len(beginning)]) and mark in head)):
        raise OutputError(f"{uri}: was not written by dkan, and would be replaced; choose an empty or new folder")


def json_text(value: Any) -> str:
    """Return ``value`` as the text of a JSON file; NaN and infinity are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically; NaN and infinity are refused."""
    write_atomic(path, json_text(value))


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


def leftovers(name: str) -> set[str]:
    """Return what a killed command may leave beside ``name``."""
    return {f".{name}.partial", f".{name}.old"}


def check_free(out: str | Path, *, ours: Collection[str], overwrite: bool) -> None:
    """Raise OutputError unless ``out`` is absent, empty, or holds a result of ours that may be overwritten.

    Args:
        out: Local path or fsspec URI of a folder.
        ours: Names that the command itself writes there.
        overwrite: Whether an earlier result may be replaced.
    """
    names = entries(out) - {PARTIAL}.union(*map(leftovers, ours))
    names = {name for name in names if not any(is_aside(name, own) for own in ours)}
    foreign = sorted(names - set(ours))
    if foreign:
        raise OutputError(f"{out}: already holds something else ({foreign[0]}); choose an empty or new folder")
    if names and not overwrite:
        raise OutputError(
            f"{out}: already holds an earlier result; "
            "pass --overwrite (in Python overwrite=True) or choose another folder"
        )


def entries(out: str | Path) -> set[str]:
    """Return the names of what lies in a folder, local or remote; an absent one is empty.

    Raises:
        OutputError: It is a file, or cannot be reached.
    """
    if not str(out).strip() or "\0" in str(out):
        raise OutputError(f"{str(out)!r} names no folder to write to")
    if is_remote(out):
        fs, path = filesystem(out)
        with writable(out):
            fs.invalidate_cache()
            names = fs.ls(path, detail=False) if fs.exists(path) else []
        return {name.rstrip("/").rsplit("/", 1)[-1] for name in names}
    try:
        return set(os.listdir(local_path(out))) - {LOCK}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise OutputError(f"{out}: is a file; expected a folder") from None
    except OSError as error:
        raise output_error(out, error) from error


@contextmanager
def staged_folder(out: str | Path, *, names: Sequence[str], overwrite: bool) -> Iterator[Path]:
    """Yield a folder to write into; what is in it appears in ``out`` when the block ends well, else nothing does.

    Args:
        out: Local path or fsspec URI of a folder that is absent, empty, or holds an earlier result.
        names: What the command writes there. The last one arrives after the rest: whoever finds it finds the whole.
        overwrite: Whether an earlier result may be replaced.
    """
    _check_staged(out, names, overwrite)
    if is_remote(out):
        with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
            yield Path(folder)
            replace_remote(Path(folder), str(out), names)
        return
    target = local_path(out)
    staging = target / PARTIAL
    with output_lock(out):
        _check_staged(out, names, overwrite)  # once more: another process may have ended just now
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            yield staging
            _move_into(staging, target, names)
        except OSError as error:
            raise _failure(out, target, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def output_lock(out: str | Path) -> Iterator[None]:
    """Hold a local output folder against other processes of this machine; a killed one holds nothing.

    Args:
        out: Local path, or fsspec URI of a folder, which is not locked.

    Raises:
        OutputError: Another process writes there; the message names it. Or the folder cannot be made.
    """
    if is_remote(out):
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(local_path(out)))
        except OSError as error:
            raise output_error(out, error) from error
        yield


def _failure(out: str | Path, place: Path, error: OSError) -> UserError:
    """Describe an error inside a staged block: of the output, unless it names a file in another place."""
    if not isinstance(error.filename, str):
        return output_error(out, error)
    named, place = Path(error.filename).absolute(), place.absolute()
    if named.is_relative_to(place) or place.is_relative_to(named):
        return output_error(out, error)
    return DataError(f"{error.filename}: cannot be read ({error.strerror})")


def _check_staged(out: str | Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise OutputError where ``names`` in ``out`` may be somebody's own: no result is whole without the last one.

    What a killed command left has no last name either, but lies beside its staging folder, and is replaced.
    """
    found = entries(out)
    unfinished = PARTIAL in found and names[-1] not in found
    if found and not unfinished and names[-1] not in found:
        raise OutputError(f"{out}: already holds something else ({min(found)}); choose an empty or new folder")
    check_free(out, ours=names, overwrite=overwrite or unfinished)


def _move_into(staging: Path, target: Path, names: Sequence[str]) -> None:
    for name in reversed(names):
        remove(target / name)
    for folder in (staging, *filter(Path.is_dir, staging.iterdir())):
        sync_folder(folder)
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
    if not str(out).strip() or "\0" in str(out):
        raise OutputError(f"{str(out)!r} names no file to write")
    with _local_file(out) if is_remote(out) else nullcontext(local_path(out)) as target:
        aside = target
        try:
            if target.is_dir():
                raise OutputError(f"{out}: is a folder; expected a file to write")
            target.parent.mkdir(parents=True, exist_ok=True)
            with held_aside(target) as aside:
                yield aside
                with aside.open("rb+") as file:
                    os.fsync(file.fileno())
                aside.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            raise _failure(out, aside, error) from error


@contextmanager
def _local_file(uri: str | Path) -> Iterator[Path]:
    """Yield the name of a local file, which is uploaded to ``uri`` when the block ends well."""
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        yield Path(folder) / "file"
        fs, path = filesystem(uri)
        with writable(uri):
            fs.put_file(f"{folder}/file", path)


def replace_remote(folder: Path, uri: str, names: Sequence[str]) -> None:
    """Put a local folder's files in the place of an earlier result; a failure leaves nothing.

    An object named as the staging folder stands there meanwhile and marks what a killed command left as ours.
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


def upload_folder(folder: Path, uri: str, *, last: str) -> None:
    """Copy a local folder's files to a remote one, ``last`` after the rest.

    Raises:
        OutputError: ``uri`` cannot be written.
    """
    fs, root = filesystem(uri)
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path == folder / last)
    with writable(uri):
        for path in files:
            fs.put_file(str(path), f"{root}/{path.relative_to(folder).as_posix()}")


def _key_below(name: str, root: str, uri: str | Path) -> str:
    """Return the part of a key below ``root``; keys of buckets and archives may start with / or hold ``..``."""
    root = root.rstrip("/")
    if not name.startswith(f"{root}/" if root else ""):
        raise DataError(f"{uri}: names a file outside of it: {name!r}")
    return name[len(root) :].removeprefix("/") if root else name


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
