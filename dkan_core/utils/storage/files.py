"""Single files: read only if they are regular, written whole or not at all."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dkan_core.errors import DataError
from dkan_core.utils.storage.failures import output_error, readable
from dkan_core.utils.storage.locks import held_aside
from dkan_core.utils.storage.paths import check_name, filesystem
from dkan_core.utils.storage.time_limits import time_limit


def check_regular(path: str | Path) -> None:
    """Raise DataError unless ``path`` is a regular file that can be reached: a pipe or device may never end."""
    with readable(path):
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise DataError(f"{path}: is not a regular file")


def read_regular(path: Path) -> bytes:
    """Return the content of a local file; a pipe or device, which may never end, is refused.

    Raises:
        DataError: It cannot be read or is not a regular file.
        FileNotFoundError: There is none.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # Checked after opening, as another file could take its place between a check and the opening.
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise DataError(f"{path}: is not a regular file")
        with os.fdopen(handle, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def read_if_there(uri: str) -> str | None:
    """Return the text of a file, local or remote, or None where there is none.

    Raises:
        DataError: It cannot be read, or is not UTF-8.
    """
    check_name(uri)
    fs, path = filesystem(uri)
    with readable(uri):
        # No check for existence before, as the file may disappear in between.
        try:
            content: bytes = fs.cat_file(path, **time_limit(fs))
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{uri}: is not UTF-8 ({error})") from error


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a temporary file, flush it to disk and rename it into place."""
    data = content.encode() if isinstance(content, str) else content
    try:
        with held_aside(path) as aside:
            aside.write_bytes(data)
            put_in_place(aside, path)
    except OSError as error:
        raise output_error(path, error) from error


def put_in_place(file: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Flush a file, ``check`` and rename it: the name never stands for an empty file after a power cut."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    check()
    file.replace(target)
    sync_folder(target.parent)


def json_text(value: Any) -> str:
    """Return ``value`` as the text of a JSON file; NaN and infinity are refused."""
    return _indented(value, "\n") + "\n"


def _indented(value: Any, line: str) -> str:
    r"""Return ``json.dumps(value, indent=2)``, much faster: with an indent, json does not use its encoder in C.

    >>> value = {"a": [1, 2.5, True, None, []], "b": {"c": "ä", "d": {}}, "e": [0.1, 1e300], "f": [[1], (2, 3)]}
    >>> _indented(value, "\n") == json.dumps(value, indent=2)
    True
    """
    inner = line + "  "
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        items = (f"{json.dumps(key)}: {_indented(item, inner)}" for key, item in value.items())
        return f"{{{inner}{f',{inner}'.join(items)}{line}}}"
    if isinstance(value, list | tuple) and value:
        if {*map(type, value)} <= {int, float}:
            numbers = json.dumps(value, allow_nan=False)[1:-1]
            return f"[{inner}{numbers.replace(', ', f',{inner}')}{line}]"
        return f"[{inner}{f',{inner}'.join(_indented(item, inner) for item in value)}{line}]"
    return json.dumps(value, indent=2, allow_nan=False).replace("\n", line)


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


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
