"""Checkpoints in a folder or a bucket: written whole, read again, the oldest removed.

``checkpoint_file`` has what is in one.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from dkan_core.errors import DataError, OutputError
from dkan_core.model.model_folder import MODEL_FILES, read_files
from dkan_core.training.state.checkpoint_file import Checkpoint, decode, encode
from dkan_core.utils.retry import RetryPolicy, call_with_retries
from dkan_core.utils.storage.failures import is_disk_full, readable, writable
from dkan_core.utils.storage.locks import remove_abandoned
from dkan_core.utils.storage.paths import filesystem, is_remote, local_path
from dkan_core.utils.storage.staging import staged_file
from dkan_core.utils.storage.time_limits import time_limit
from dkan_core.utils.storage.transfers import cat_file

# A run's folder for them, unless another is named.
CHECKPOINTS = "checkpoints"

# Values of ``resume`` by which a run resumes in its own folder.
OWN_CHECKPOINTS = ("auto", "best")

# The checkpoint of the best evaluation's step, beside those of the newest steps.
BEST_FILE = "best.safetensors"

CHECKPOINT_FILE = re.compile(rf"step-\d{{12}}\.safetensors|{re.escape(BEST_FILE)}")

# The newest, and the one before it in case the newest turns out to be damaged.
KEPT_FILES = 2

# Retries over 3.5 s: enough for a bucket that hiccups, and the next checkpoint comes anyway.
RETRIES = RetryPolicy(first_pause=0.5, attempts=4)

logger = logging.getLogger(__name__)


def save_checkpoint(folder: str, checkpoint: Checkpoint) -> str:
    """Write a checkpoint into a folder and remove all but the newest, and what killed processes left; return its URI.

    Raises:
        OutputError: The folder cannot be written, also when tried again; older checkpoints stay.
    """
    if not is_remote(folder):
        # Those of killed processes are of other steps: none of the files to come would have the same name.
        remove_abandoned(local_path(folder), lambda name: CHECKPOINT_FILE.fullmatch(name) is not None)
    uri = f"{folder}/step-{checkpoint.ledger.step:012d}.safetensors"
    write_checkpoint(uri, checkpoint)
    _prune(folder, uri.rsplit("/", 1)[1])
    return uri


def write_checkpoint(uri: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as a file.

    Raises:
        OutputError: It cannot be written, also when tried again; an earlier one of this name stays.
    """
    write_parts(uri, encode(checkpoint))


def write_parts(uri: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file, and try again for a while where that fails.

    Raises:
        OutputError: It cannot be written; an earlier one stays.
    """

    def write() -> None:
        with staged_file(uri) as aside, aside.open("wb") as file:
            file.writelines(parts)

    call_with_retries(write, RETRIES, _may_pass, name="checkpoint")


def _may_pass(error: BaseException) -> bool:
    # A full disk will not recover so soon, and a bucket that never answered has used up its time.
    return isinstance(error, OutputError) and not (
        is_disk_full(error.__cause__) or isinstance(error.__cause__, TimeoutError)
    )


def _prune(folder: str, newest: str) -> None:
    """Remove all but the newest checkpoint and the kept ones before it; what cannot be removed does no harm."""
    try:
        names = _names(folder)
        # Later steps belong to a training that --resume best has abandoned.
        kept = [name for name in names if name <= newest][-KEPT_FILES:]
        _remove(folder, [name for name in names if name not in kept])
    except (DataError, OutputError) as error:
        logger.warning("older checkpoints were not removed: %s", error)


def _remove(folder: str, names: Sequence[str]) -> None:
    fs, root = filesystem(folder)
    with writable(folder):
        for name in names:
            fs.rm_file(f"{root}/{name}", **time_limit(fs))


def best_path(folder: Path, checkpoints: str) -> Path:
    """Return where the evaluator writes the best state: among the checkpoints, or in the run where these are remote."""
    return (folder / CHECKPOINTS if is_remote(checkpoints) else local_path(checkpoints)) / BEST_FILE


def copy_best(checkpoint: Checkpoint, folder: str) -> None:
    """Write the checkpoint of the best evaluation to another folder, if it lies beside a later one of its run.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        best = load_checkpoint(f"{checkpoint.source.rpartition('/')[0] or '.'}/{BEST_FILE}")
    except DataError as error:
        logger.warning("%s; --resume best needs a better evaluation first", error)
        return
    steps = [entry["step"] for entry in checkpoint.history if entry["best"]]
    if best is not None and best[1].ledger.step in steps[-1:]:
        write_checkpoint(f"{folder}/{BEST_FILE}", best[1])


def read_model(folder: Path) -> dict[str, bytes]:
    """Return the model files for a checkpoint; empty if none is complete, as the folder may be replaced meanwhile."""
    try:
        files = read_files(folder, MODEL_FILES)
    except FileNotFoundError:
        return {}
    return files if len(files) == len(MODEL_FILES) else {}


def load_checkpoint(uri: str) -> tuple[str, Checkpoint] | None:
    """Read the newest whole checkpoint of a folder, or one file; return its path or URI as well.

    If there is only the best state, it is read: a run may have been killed before its first checkpoint.

    Returns:
        None where there is none.

    Raises:
        DataError: The folder cannot be reached, or none of its checkpoints is whole.
    """
    if uri.endswith(".safetensors"):
        return (uri, _read(uri)) if _exists(uri) else None
    names = _names(uri)
    for name in reversed(names):
        try:
            return f"{uri}/{name}", _read(f"{uri}/{name}")
        except DataError as error:
            if name == names[0]:
                raise
            logger.warning("%s; using the one before", error)
    best = load_checkpoint(f"{uri}/{BEST_FILE}")
    return best if best is not None and best[1].ledger.step else None


def load_source(resume: str, where: str) -> tuple[str, Checkpoint] | None:
    """Read the checkpoint that a run is to resume from; what is named may be the folder of a run, too.

    Args:
        resume: The setting, other than "never".
        where: Folder or URI of the run's own checkpoints.

    Returns:
        Its path or URI as well; None where there is none.

    Raises:
        DataError: The folder cannot be reached, or none of its checkpoints is whole.
    """
    source = source_of(resume, where).rstrip("/")
    found = load_checkpoint(source)
    if found is None and resume not in OWN_CHECKPOINTS and not source.endswith(".safetensors"):
        found = load_checkpoint(f"{source}/{CHECKPOINTS}")
    return found


def source_of(resume: str, where: str) -> str:
    """Return the folder or file that a run is to resume from.

    >>> source_of("best", "run/checkpoints")
    'run/checkpoints/best.safetensors'
    """
    return {"auto": where, "best": f"{where}/{BEST_FILE}"}.get(resume, resume)


def check_no_checkpoints(folder: str) -> None:
    """Raise OutputError where a folder holds checkpoints."""
    if _all_names(folder):
        raise OutputError(
            f"{folder}: already holds checkpoints; resume from them with --resume auto, or remove them with --overwrite"
        )


def clear_checkpoints(folder: str) -> None:
    """Remove a folder's checkpoints, so that later ones are not mistaken for those of the run that begins."""
    _remove(folder, _all_names(folder))


def _all_names(folder: str) -> list[str]:
    return _names(folder) + ([BEST_FILE] if _exists(f"{folder}/{BEST_FILE}") else [])


def _exists(uri: str) -> bool:
    fs, path = filesystem(uri)
    with readable(uri):
        # fsspec remembers listings, and another process writes here.
        fs.invalidate_cache()
        return bool(fs.exists(path, **time_limit(fs)))


def _names(folder: str) -> list[str]:
    fs, root = filesystem(folder)
    with readable(folder):
        fs.invalidate_cache()
        limit = time_limit(fs)
        found = fs.ls(root, detail=False, **limit) if fs.exists(root, **limit) else []
    names = (name.rstrip("/").rsplit("/", 1)[-1] for name in found)
    # Twelve digits: the names sort as the steps do. Whatever else lies there is not touched.
    return sorted(name for name in names if name != BEST_FILE and CHECKPOINT_FILE.fullmatch(name))


def _read(uri: str) -> Checkpoint:
    fs, path = filesystem(uri)
    with readable(uri):
        content = cat_file(fs, path)
    return decode(content, uri)
