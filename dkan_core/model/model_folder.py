"""The files of a model folder: read as they stood at one moment, and checked against the hashes written with them."""

import hashlib
import logging
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dkan_core.errors import ConfigError, DataError, OutputError
from dkan_core.utils.file_names import CONFIG, METRICS, MODEL_FOLDER, PREPROCESSOR
from dkan_core.utils.schemas import Schema, SchemaT, read_json
from dkan_core.utils.storage.files import json_text, read_if_there
from dkan_core.utils.storage.outputs import PARTIAL, check_file_is_ours, check_free, entries, foreign_contents
from dkan_core.utils.storage.paths import check_name, is_remote, local_path

WEIGHTS, CARD, HASHES, ESTIMATOR = "model.safetensors", "README.md", "files.json", "estimator.json"
# What ``train`` writes; ``FastKANClassifier.save`` adds ``estimator.json``.
MODEL_FILES = (WEIGHTS, CONFIG, PREPROCESSOR, METRICS, CARD, HASHES)
# The files that determine its scores.
IDENTITY = (CONFIG, PREPROCESSOR, WEIGHTS)

# Key of ``metrics.json``: the rows of train and valid together, if a second training took place on both.
REFIT_ROWS = "refit_rows"
# Key there for each label: the distribution of its scores on validation.
SCORES = "scores"

# Version of ``files.json``, and with it of the whole folder.
FORMAT_VERSION = 1

logger = logging.getLogger(__name__)


class Hashes(Schema):
    """Contents of ``files.json``."""

    format_version: Literal[1]
    """Version of the format."""

    sha256: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    """Of each file but the card, which is for people and may be edited."""


def with_hashes(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a model, by name, with the one that holds their hashes."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != CARD}
    return {**files, HASHES: json_text({"format_version": FORMAT_VERSION, "sha256": hashes}).encode()}


def check_model_replaceable(folder: str | Path, *, overwrite: bool) -> None:
    """Raise OutputError unless a folder is absent, empty, or holds a model that may be replaced.

    Args:
        folder: Local path or fsspec URI.
        overwrite: Whether an earlier model may be replaced.
    """
    check_free(folder, ours=(*MODEL_FILES, ESTIMATOR), overwrite=overwrite)
    found = entries(folder)
    # No model is whole without its architecture; an upload that was killed has left its staging folder.
    if found and not found & {CONFIG, PARTIAL}:
        raise foreign_contents(folder, min(found))
    check_model_is_ours(folder)


def check_model_is_ours(folder: str | Path) -> None:
    """Raise OutputError where a file has the name of a model's file and is not one.

    Other tools write files of these names, too: a config.json beside a model.safetensors is common.
    """
    folder = str(folder).rstrip("/")
    check_file_is_ours(f"{folder}/{CONFIG}", beginning=b"{", mark=b'"num_numeric"')
    check_file_is_ours(f"{folder}/{PREPROCESSOR}", beginning=b"{", mark=b'"numeric"')


@contextmanager
def naming_swapped(sources: Sequence[str | Path]) -> Iterator[None]:
    """Turn a DataError in the block into a ConfigError if a source is a model: the two arguments were swapped.

    Raises:
        ConfigError: There is such a source; the message names it.
    """
    try:
        yield
    except DataError as error:
        swapped = next(filter(_holds_model, sources), None)
        if swapped is None:
            raise
        raise ConfigError(f"{swapped}: is a model; name the model first, then the data") from error


def check_is_model(uri: str, sources: Sequence[str | Path] = ()) -> None:
    """Check early that a folder on this machine is a model or a run; a URI is not checked.

    Args:
        uri: The folder.
        sources: Data that the model is for; one that is a model instead is named.

    Raises:
        ConfigError: The two were swapped.
        DataError: There is no model, or it cannot be read.
    """
    check_name(uri)
    if is_remote(uri):
        return
    with suppress(DataError):  # said below, as of any other model
        if find_model(uri) is not None:
            return
    with naming_swapped(sources):
        ModelFolder(local_path(uri)).read(CONFIG)


def _holds_model(uri: str | Path) -> bool:
    with suppress(OutputError):
        return any({CONFIG, WEIGHTS} <= entries(folder) for folder in (uri, f"{uri}/{MODEL_FOLDER}"))
    return False


def find_model(uri: str) -> str | None:
    """Return the folder or URI of a model, given that or its run's; None where there is none."""
    root = uri.rstrip("/")
    for folder in (root, f"{root}/{MODEL_FOLDER}"):
        if read_if_there(f"{folder}/{CONFIG}") is not None:
            return folder
    return None


class ModelFolder:
    """A model's files in memory; a file is checked against its hash when it is asked for.

    Args:
        folder: Folder of a model, or of a run with a ``model`` folder.

    Raises:
        DataError: It cannot be read, or its list of hashes is damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            if not (folder / CONFIG).exists() and (folder / MODEL_FOLDER).is_dir():
                folder = folder / MODEL_FOLDER
            self.files = read_files(folder, (*MODEL_FILES, ESTIMATOR))
        except FileNotFoundError:
            self.files = {}
        except NotADirectoryError:
            raise DataError(f"{folder}: is a file; expected the folder of a model that `dkan train` wrote") from None
        except OSError as error:
            raise DataError(f"{folder}: cannot be read ({error.strerror or error})") from error
        self.folder = folder
        self._hashes: Hashes | None = None
        if HASHES in self.files:
            self._hashes = read_json(Hashes, self.files[HASHES], str(folder / HASHES))
        elif self.files:
            logger.warning("%s: has no %s, so damage to its files may go unnoticed", folder, HASHES)

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights, architecture and encoding, as they were read.

        Raises:
            DataError: One is missing, or not as it was written.
        """
        digest = hashlib.sha256()
        for name in IDENTITY:
            digest.update(hashlib.sha256(self.read(name)).digest())
        return digest.hexdigest()

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            DataError: It is missing, or not as it was written.
        """
        if name not in self.files:
            raise DataError(f"{self.folder}: no {name} there; expected a model that `dkan train` wrote")
        content = self.files[name]
        if self._hashes is not None and name not in (CARD, HASHES):
            expected = self._hashes.sha256.get(name)
            found = hashlib.sha256(content).hexdigest()
            if found != expected:
                raise DataError(
                    f"{self.folder / name}: is damaged or was changed: its SHA-256 is {found[:12]}…, "
                    f"{HASHES} says {f'{expected[:12]}…' if expected else 'nothing of it'}"
                )
        return content

    def read_json(self, schema: type[SchemaT], name: str) -> SchemaT:
        """Return a JSON file as a schema's model.

        Raises:
            DataError: It is missing, not as it was written, or not what the schema says.
        """
        return read_json(schema, self.read(name), str(self.folder / name))


def read_files(folder: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of those files that are there, all of one folder, which may be replaced meanwhile.

    Raises:
        OSError: The folder or a file cannot be read.
    """
    while True:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = {name: content for name in names if (content := _read_at(handle, name)) is not None}
            # A folder that was replaced is being removed, file by file.
            if len(found) == len(names) or _is_still(folder, handle):
                return found
        finally:
            os.close(handle)


def _read_at(folder: int, name: str) -> bytes | None:
    """Return the content of a file in an open folder; None where there is none."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait forever.
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read()


def _is_still(folder: Path, handle: int) -> bool:
    try:
        return folder.stat().st_ino == os.fstat(handle).st_ino
    # The folder was removed and not replaced: reading again would find no more.
    except FileNotFoundError:
        return True
