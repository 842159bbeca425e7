"""Paths and fsspec URIs: local or remote, their filesystem, whether one lies in another."""

import os
import posixpath
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from dkan_core.errors import DataError, UnreadableError
from dkan_core.utils.messages import first_line
from dkan_core.utils.storage.credentials import use_own_credentials

ONE_SLASH = re.compile(r"(s3|gs|gcs|az|abfs|abfss|adl|hdfs|http|https|file|local|memory):(?:/(?!/)(.*))?", re.DOTALL)
"""A mistyped URI."""

PLUGIN_SCHEMES = ("abfss",)
"""Schemes that fsspec supports with a package that may be missing where a run is submitted."""

SCHEME = re.compile(r"(?:^|::)(\w+)://")
"""That of a URI; several of a chain such as zip://::s3://bucket/model.zip."""

WITHOUT_BUCKET = ("file", "local", "memory", "hdfs", "arrow_hdfs", "webhdfs", "dbfs")
"""Schemes of URIs that need no bucket or host."""


def is_remote(uri: str | Path) -> bool:
    """Return whether ``uri`` names something that is not on a local file system.

    >>> is_remote("s3://bucket/key"), is_remote("file:///tmp/x"), is_remote("data")
    (True, False, False)
    """
    text = str(uri)
    return "://" in text and not text.startswith(("file://", "local://"))


def is_shared(uri: str | Path, root: str = "") -> bool:
    """Return whether a path or URI names the same files on several machines.

    Args:
        uri: Path or URI.
        root: Folder on a volume that all of them mount. Default: none.

    >>> is_shared("s3://bucket/run"), is_shared("minio://bucket/run"), is_shared("/data/run")
    (True, False, False)
    >>> is_shared("/data/run", "/data"), is_shared("/data/../run", "/data"), is_shared("data/run", "/")
    (True, False, False)
    """
    if is_remote(uri):
        scheme = str(uri).partition("://")[0]
        is_known = scheme in (*fsspec.available_protocols(), *PLUGIN_SCHEMES)
        return scheme != "memory" and is_known and not lacks_bucket(uri)
    path = posixpath.normpath(str(uri).removeprefix("file://").removeprefix("local://"))
    return bool(root) and PurePosixPath(path).is_relative_to(root)


def lacks_bucket(uri: str | Path) -> bool:
    """Return whether a URI names nothing to look in.

    >>> lacks_bucket("s3://"), lacks_bucket("s3:///run"), lacks_bucket("hdfs:///run"), lacks_bucket("/run")
    (True, True, False, False)
    """
    # Of a chain, such as zip://::s3://bucket/model.zip, the last one has the bucket.
    scheme, separator, rest = str(uri).rpartition("::")[2].partition("://")
    return bool(separator) and scheme not in WITHOUT_BUCKET and not rest.partition("/")[0]


def lacks_package(uri: str | Path) -> str:
    """Return why no file system can be loaded here for a URI; empty if it can.

    >>> lacks_package("minio://bucket/run"), lacks_package("zip://::file:///model.zip"), lacks_package("run")
    ('Protocol not known: minio', '', '')
    """
    try:
        for scheme in SCHEME.findall(str(uri)):
            fsspec.get_filesystem_class(scheme)
            # pyarrow has the class, and looks for Java and Hadoop's libhdfs only when it connects.
            if scheme in ("hdfs", "arrow_hdfs") and not (os.environ.get("JAVA_HOME") or shutil.which("java")):
                return f"{scheme} needs Java and Hadoop's libhdfs, and there is no Java"
    except (ImportError, ValueError) as error:
        return str(error)
    return ""


def check_slashes(uri: str | Path) -> None:
    """Raise DataError where a URI lacks a slash: it would name a local folder that is called like its scheme.

    >>> check_slashes("s3:/bucket/models")
    Traceback (most recent call last):
    dkan_core.errors.DataError: s3:/bucket/models: a URI has two slashes after the scheme: s3://bucket/models
    >>> check_slashes("s3://".rstrip("/"))
    Traceback (most recent call last):
    dkan_core.errors.DataError: s3:: a URI has two slashes after the scheme: s3://bucket
    """
    check_type(uri)
    if found := ONE_SLASH.fullmatch(str(uri)):
        scheme, rest = found.groups("bucket")
        raise DataError(f"{uri}: a URI has two slashes after the scheme: {scheme}://{rest}")


def local_path(uri: str | Path) -> Path:
    """Return the local path that ``uri`` names; ~ is the user's home, as fsspec has it.

    Raises:
        DataError: It is a URI that lacks a slash.
    """
    check_slashes(uri)
    return Path(str(uri).removeprefix("file://").removeprefix("local://")).expanduser()


def filesystem(uri: str | Path) -> tuple[Any, str]:
    """Return the fsspec file system of ``uri`` and the path in it.

    All file systems are opened here, so that dkan's own credentials apply to all of them.

    Raises:
        DataError: The scheme is unknown, its package is not installed, or a slash is missing.
        UnreadableError: The file system cannot be reached.
    """
    check_slashes(uri)
    use_own_credentials()
    try:
        fs, path = fsspec.core.url_to_fs(str(uri))
    except (ImportError, ValueError) as error:
        raise DataError(f"{uri}: {error} (extras: s3, gcs)") from error
    except Exception as error:
        # Some file systems connect when they are made, or open the archive that they are to read.
        raise UnreadableError(f"{uri}: cannot be read ({first_line(error)})") from error
    return fs, path


def lies_in(uri: str, folder: str) -> bool:
    """Return whether a file or folder equals or lies in a folder, however both paths are written.

    >>> lies_in("run/a/../b.json", "./run/"), lies_in("s3://bucket/running", "s3://bucket/run")
    (True, False)
    """
    if is_remote(uri) or is_remote(folder):
        return f"{uri}/".startswith(f"{folder.rstrip('/')}/")
    return local_path(uri).resolve().is_relative_to(local_path(folder).resolve())


def check_type(uri: object) -> None:
    """Raise DataError where ``uri`` is neither a text nor a path; None would mean a folder of that name."""
    if not isinstance(uri, str | os.PathLike):
        raise DataError(f"expected a path or URI, got a value of type {type(uri).__name__}")


def names_nothing(uri: str | Path) -> bool:
    """Return whether ``uri`` can name no file or folder; an empty text would mean the current folder."""
    return not str(uri).strip() or "\0" in str(uri)


def check_name(uri: str | Path) -> None:
    """Raise DataError where ``uri`` is neither a text nor a path, or can name no file or folder."""
    check_type(uri)
    if names_nothing(uri):
        raise DataError(f"{str(uri)!r} names no file or folder")


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
    check_relative(name, where or folder)
    path = folder / name
    # Resolved, because a link may lead out of the folder without a dot in its name.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise _outside(name, where or folder)
    return path


def check_relative(name: str, where: str | Path) -> None:
    """Raise DataError where a name that was read from a file leads out of ``where``, the folder or URI it lies below.

    >>> check_relative("day=1/../../a", "s3://bucket/scores")
    Traceback (most recent call last):
    dkan_core.errors.DataError: s3://bucket/scores: names a file outside of it: 'day=1/../../a'
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise _outside(name, where)


def _outside(name: str, where: str | Path) -> DataError:
    return DataError(f"{where}: names a file outside of it: {name!r}")
