"""Checks of an output's place: it may hold nothing, an earlier result of ours, or other files, which must stay."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dkan_core.errors import OutputError
from dkan_core.utils.storage.failures import output_error, writable
from dkan_core.utils.storage.listing import files_below, names_in
from dkan_core.utils.storage.locks import ASIDE, LOCK, is_aside
from dkan_core.utils.storage.paths import filesystem, is_remote, local_path, names_nothing
from dkan_core.utils.storage.replacement import COMPLETE, MOVING
from dkan_core.utils.storage.time_limits import time_limit

# Folder in which an output is built, inside it; it marks the leftovers of a killed command.
PARTIAL = ".partial"

# Folders in an output that a killed command may leave there.
OWN_FOLDERS = {PARTIAL, COMPLETE, MOVING}

# Enough of a file to recognise it by.
HEAD_BYTES = 1 << 16

# Beginning of our pages.
PAGE_BEGINNING = b"<!DOCTYPE html>"


def entries(out: str | Path) -> set[str]:
    """Return the names in a folder, local or remote; none if it is absent.

    Raises:
        OutputError: It is a file, or cannot be reached.
    """
    if names_nothing(out):
        raise OutputError(f"{str(out)!r} names no folder to write to")
    if is_remote(out):
        fs, path = filesystem(out)
        with writable(out):
            fs.invalidate_cache()
            limit = time_limit(fs)
            return names_in(fs, path, **limit) if fs.exists(path, **limit) else set()
    try:
        return set(os.listdir(local_path(out))) - {LOCK}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise OutputError(f"{out}: is a file; expected a folder") from None
    except OSError as error:
        raise output_error(out, error) from error


def foreign_contents(out: str | Path, name: str) -> OutputError:
    """Return the error for an output folder with other contents."""
    return OutputError(f"{out}: contains {name}, which this command did not write; choose an empty or new folder")


def check_free(
    out: str | Path,
    *,
    ours: Collection[str],
    overwrite: bool,
    leftovers: Collection[str] = (),
    contents: Mapping[str, str] = {},
) -> None:
    """Raise OutputError unless ``out`` is absent, empty, or holds a result of ours that may be overwritten.

    Args:
        out: Local path or fsspec URI of a folder.
        ours: Names that the command itself writes there.
        overwrite: Whether an earlier result may be replaced.
        leftovers: Names of other files that a killed command may leave there.
        contents: What the folders among ours hold, as ``check_contents`` takes it.
    """
    names = entries(out) - OWN_FOLDERS.union(leftovers)
    # Temporary files of killed processes do not count: the next process that writes the file removes them.
    names = {name for name in names if not any(is_aside(name, own) for own in ours)}
    foreign = sorted(names - set(ours))
    if foreign:
        raise foreign_contents(out, foreign[0])
    if names and not overwrite:
        raise OutputError(
            f"{out}: already holds an earlier result; "
            "pass --overwrite (in Python overwrite=True) or choose another folder"
        )
    check_contents(out, {name: contents[name] for name in contents.keys() & names})


def check_contents(out: str | Path, contents: Mapping[str, str]) -> None:
    """Raise OutputError where a folder that would be replaced holds a file that no command of ours writes there.

    Args:
        out: Local path or fsspec URI of a folder.
        contents: By the name of a folder in it, a pattern of the paths of the files there.
    """
    for name, pattern in contents.items():
        folder = f"{str(out).rstrip('/')}/{name}"
        fs, root = filesystem(folder)
        with writable(folder):
            fs.invalidate_cache()
            paths = files_below(fs, root)
        for path in (found.removeprefix(root) for found in paths):
            # Temporary files of killed processes do not count.
            if not (re.fullmatch(f"/({pattern})", path) or ASIDE.fullmatch(path.rpartition("/")[2])):
                raise OutputError(
                    f"{folder}{path}: was not written by dkan, and {folder} would be replaced; "
                    "choose an empty or new folder"
                )


def check_file_name(uri: str | Path) -> None:
    """Raise OutputError where ``uri`` can name no file."""
    if names_nothing(uri):
        raise OutputError(f"{str(uri)!r} names no file to write")


def check_file_free(uri: str, *, overwrite: bool, beginning: bytes, mark: bytes = b"") -> None:
    """Raise OutputError unless a file is absent, empty, or an earlier result of ours that may be overwritten.

    Args:
        uri: Path or fsspec URI of the file.
        overwrite: Whether an earlier result may be replaced.
        beginning: What ours begins with.
        mark: What else is in the first kilobytes of ours.
    """
    check_file_name(uri)
    fs, path = filesystem(uri)
    with writable(uri):
        if fs.exists(path, **time_limit(fs)) and fs.isdir(path):
            raise OutputError(f"{uri}: is a folder; expected a file to write")
    check_file_is_ours(uri, beginning=beginning, mark=mark)
    with writable(uri):
        taken = not overwrite and fs.exists(path, **time_limit(fs)) and fs.size(path)
    if taken:
        raise OutputError(f"{uri}: already exists; pass --overwrite (in Python overwrite=True) or choose another file")


def check_page_free(uri: str | Path, *, overwrite: bool) -> None:
    """Raise OutputError unless a page may be written to a file.

    Args:
        uri: Path or fsspec URI of the page.
        overwrite: Whether an earlier page of ours may be replaced.
    """
    check_suffix(uri, (".html", ".htm"), "pages are written as HTML")
    check_file_free(str(uri), overwrite=overwrite, beginning=PAGE_BEGINNING)


def check_suffix(uri: str | Path, suffixes: Sequence[str], written_as: str) -> str:
    """Return the suffix of a file's name, in small letters; raise OutputError where it promises another format.

    Args:
        uri: Path or fsspec URI of the file.
        suffixes: What the name may end in; it may also have no suffix.
        written_as: What is written, and as what, for the message.

    >>> check_suffix("s3://bucket/scores.PARQUET", (".parquet", ".csv"), "scores are written as Parquet or CSV")
    '.parquet'
    """
    suffix = PurePosixPath(str(uri)).suffix.lower()
    if suffix and suffix not in suffixes:
        raise OutputError(f"{uri}: {written_as}; let the name end in {' or '.join(suffixes)}, not in {suffix}")
    return suffix


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
        limit = time_limit(fs)
        if not fs.exists(path, **limit):
            return
        head = fs.cat_file(path, end=HEAD_BYTES, **limit) if fs.isfile(path) else None
    if head is None or (head and not (beginning.startswith(head[: len(beginning)]) and mark in head)):
        raise OutputError(f"{uri}: was not written by dkan, and would be replaced; choose another place")
