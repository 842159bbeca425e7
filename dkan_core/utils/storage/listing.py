"""The content of a remote folder, without folder markers.

Consoles and other tools create a folder in a bucket as an empty object whose key ends in a slash. Listings of the
folder contain it, but it is not a file: no local file can have such a name.
"""

from typing import Any


def files_below(fs: Any, folder: str) -> list[str]:
    """Return the paths of the files below a folder; none if it is absent."""
    found = fs.find(folder, detail=True)
    # That of Azure returns a list for a path that is a file itself.
    listed = found if isinstance(found, dict) else {path: dict[str, Any]() for path in found}
    return [path for path, info in listed.items() if not _is_folder(path, info)]


def names_in(fs: Any, folder: str, **limit: float) -> set[str]:
    """Return the names of the files and folders in a folder that exists.

    Args:
        fs: The file system.
        folder: Path in it.
        limit: A time limit, as ``time_limit`` returns it.
    """
    listed = fs.ls(folder, detail=True, **limit)
    paths = (each["name"].rstrip("/") for each in listed if not _is_marker_of(folder, each["name"], each))
    return {path.rsplit("/", 1)[-1] for path in paths}


def _is_marker_of(folder: str, path: str, info: dict[str, Any]) -> bool:
    return _is_folder(path, info) and path.rstrip("/") == folder.rstrip("/")


def _is_folder(path: str, info: dict[str, Any]) -> bool:
    """Return whether an entry of a listing is a folder or a marker of one.

    >>> _is_folder("bucket/raw/", {"type": "file"}), _is_folder("bucket/raw", {"type": "directory"})
    (True, True)
    >>> _is_folder("bucket/raw/a.parquet", {"type": "file"})
    False
    """
    # Of a path that is a file itself, fsspec's ``find`` tells nothing.
    return info.get("type") == "directory" or path.endswith("/")
