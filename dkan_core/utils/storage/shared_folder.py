"""A folder or URI that many processes write to at once: each file appears whole or not at all, and may be rewritten."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dkan_core.utils.schemas import SchemaT, parse_json, read_json
from dkan_core.utils.storage.failures import failure_inside, readable, writable
from dkan_core.utils.storage.files import json_text, put_in_place, read_if_there, remove
from dkan_core.utils.storage.paths import check_relative, filesystem, is_remote, path_inside
from dkan_core.utils.storage.staging import staged_file

# Readers of Parquet folders skip names with a leading dot.
WORK = ".work"


class SharedFolder:
    """Reads and writes files of a folder by their names in it.

    Args:
        uri: Local path or fsspec URI of a folder, absent or not. Unfinished files lie in its ``.work``.
    """

    def __init__(self, uri: str | Path) -> None:
        self.uri = str(uri).rstrip("/")
        self.fs, self.root = filesystem(self.uri)

    def _path(self, name: str) -> str:
        # Checked, because names come from files in the folder, which others may have written.
        if is_remote(self.uri):
            check_relative(name, self.uri)
            return f"{self.root}/{name}"
        return str(path_inside(Path(self.root), name, self.uri))

    @contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        """Yield a local file to write; it becomes ``name`` when the block ends well, else nothing does."""
        path = Path(self._path(name))
        if is_remote(self.uri):
            with staged_file(f"{self.uri}/{name}") as file:
                yield file
            return
        try:
            with tempfile.TemporaryDirectory(prefix="dkan-", dir=self._aside()) as folder:
                file = Path(folder) / "file"
                yield file
                path.parent.mkdir(parents=True, exist_ok=True)
                put_in_place(file, path)
        except OSError as error:
            raise failure_inside(f"{self.uri}/{name}", Path(self.root), error) from error

    def _aside(self) -> Path:
        """Return the folder for temporary files, on the same disk as the final ones.

        It is not the final folder: the locks that show leftovers of killed processes may not hold between the machines
        that write there. Leftovers here are removed with the folder.
        """
        folder = Path(self._path(WORK))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_json(self, name: str, value: Any) -> None:
        """Write ``value`` as JSON; NaN and infinity are refused."""
        with self.staged(name) as file:
            file.write_text(json_text(value), encoding="utf-8")

    def read_text(self, name: str) -> str | None:
        """Return the text of a file, or None where there is none."""
        self._path(name)  # refuses a name that leads out of the folder
        return read_if_there(f"{self.uri}/{name}")

    def read_json(self, name: str) -> Any:
        """Return what a JSON file holds, or None where there is none."""
        text = self.read_text(name)
        return None if text is None else parse_json(text, f"{self.uri}/{name}")

    def read(self, schema: type[SchemaT], name: str) -> SchemaT | None:
        """Return what a JSON file holds as a schema's model, or None where there is none."""
        text = self.read_text(name)
        return None if text is None else read_json(schema, text, f"{self.uri}/{name}")

    def open(self, name: str) -> Any:
        """Open a file for binary reading."""
        with readable(f"{self.uri}/{name}"):
            self.fs.invalidate_cache()
            return self.fs.open(self._path(name), "rb")

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return bytes of files: of each one named, from the first to the one before the last."""
        names, starts, stops = zip(*ranges, strict=True)
        with readable(self.uri):
            paths = [self._path(name) for name in names]
            found: list[bytes] = self.fs.cat_ranges(paths, list(starts), list(stops), on_error="raise")
            return found

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of each file in a folder, by its name."""
        with readable(f"{self.uri}/{folder}"):
            self.fs.invalidate_cache()
            found = self.fs.find(self._path(folder), detail=True)
        return {f"{folder}/{Path(path).name}": int(info["size"]) for path, info in found.items()}

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        with writable(f"{self.uri}/{name}"):
            if not is_remote(self.uri):
                remove(Path(self._path(name)))
                return
            self.fs.invalidate_cache()
            # ``find`` returns nothing for a missing folder. ``rm`` would take a bracket in a path for a pattern.
            for path in self.fs.find(self._path(name)):
                self.fs.rm_file(path)
