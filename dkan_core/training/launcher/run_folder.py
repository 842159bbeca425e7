"""A run's folder: what lies in it, what of that may be removed, and how a remote one is written."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dkan_core.config import TrainConfig
from dkan_core.config.saving import BEGINNING as BEGINNING_OF_SETTINGS
from dkan_core.errors import ConfigError, OutputError
from dkan_core.model.model_folder import MODEL_FILES, check_model_is_ours, find_model
from dkan_core.model.saved_model import asides, write_model_files
from dkan_core.tracking.mlflow.record import RECORD
from dkan_core.tracking.tensorboard import EVENTS, TENSORBOARD
from dkan_core.training.communication.flight_recorder import DUMP_NAMES
from dkan_core.training.history import BEGINNING, HISTORY
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import CHECKPOINT_FILE, CHECKPOINTS, check_no_checkpoints
from dkan_core.utils.file_names import METRICS, MODEL_FOLDER
from dkan_core.utils.storage.failures import failure_inside
from dkan_core.utils.storage.files import read_if_there, remove
from dkan_core.utils.storage.outputs import PARTIAL, check_file_is_ours, check_free, entries
from dkan_core.utils.storage.paths import is_remote, lies_in, local_path
from dkan_core.utils.storage.remote import replace_remote
from dkan_core.utils.storage.scratch import scratch_folder

SETTINGS = "config.toml"
LOGS = "logs"
# The folder of a second training; it is removed when that ends.
REFIT = "refit"
WRITTEN = (MODEL_FOLDER, HISTORY, LOGS, TENSORBOARD, RECORD, REFIT, SETTINGS, METRICS)
OUTPUTS = (CHECKPOINTS, *WRITTEN)
# What a killed process leaves: a folder of a model that is not whole, or that was being replaced.
MODEL_ASIDES = [path.name for path in asides(Path(MODEL_FOLDER))]
_LOG = rf"(server|evaluator|train|(worker|rank|member)-\d+)\.log|{DUMP_NAMES}"
_MODEL = "|".join(map(re.escape, MODEL_FILES))
CONTENTS = {
    LOGS: _LOG,
    TENSORBOARD: EVENTS,
    REFIT: rf"({MODEL_FOLDER}|{'|'.join(map(re.escape, MODEL_ASIDES))})/({_MODEL})|{re.escape(HISTORY)}|{LOGS}/({_LOG})"
    rf"|{CHECKPOINTS}/({CHECKPOINT_FILE.pattern})",
    MODEL_FOLDER: rf"({re.escape(PARTIAL)}/)?({_MODEL})",
}
"""Contents of the folder of a run, as patterns."""


def check_run_folder(run: str | Path, checkpoints: str | None, *, overwrite: bool) -> None:
    """Raise OutputError unless a folder is absent, empty, or holds a run or its remains.

    A run removes the files of an earlier one, so their names alone are no proof: ``model`` may be the user's own.

    Args:
        run: Local path or fsspec URI.
        checkpoints: Folder or URI for checkpoints, as the settings name it, which may lie in the run's.
        overwrite: Whether there may be an earlier run at all.
    """
    there = entries(run)
    own = _checkpoint_names(str(run).rstrip("/"), checkpoints.rstrip("/")) if checkpoints else ""
    left = [name for name in there if re.fullmatch(own, name)]
    # A run that was refused before its first step has left a log, and nothing that could be lost.
    overwrite = overwrite or there == {LOGS}
    check_free(run, ours=OUTPUTS, overwrite=overwrite, leftovers=[*MODEL_ASIDES, *left], contents=CONTENTS)
    if MODEL_FOLDER in there and entries(f"{run}/{MODEL_FOLDER}"):
        check_model_is_ours(f"{run}/{MODEL_FOLDER}")
    if HISTORY in there:
        check_file_is_ours(f"{run}/{HISTORY}", beginning=BEGINNING)
    if RECORD in there:
        check_file_is_ours(f"{run}/{RECORD}", beginning=b"{", mark=b'"run_id"')
    if SETTINGS in there:
        check_file_is_ours(f"{run}/{SETTINGS}", beginning=BEGINNING_OF_SETTINGS.encode())
    if METRICS in there:
        check_file_is_ours(f"{run}/{METRICS}", beginning=b"{", mark=b'"average_precision"')


def check_initial_stays(run: str | Path, init_from: str | None) -> None:
    """Raise ConfigError where a run replaces the model that it starts from, and would have none if it is killed."""
    model = None if init_from is None else find_model(init_from)
    if model is not None and lies_in(model, f"{str(run).rstrip('/')}/{MODEL_FOLDER}"):
        raise ConfigError(f"init_from {init_from}: is in the folder of this run, which replaces it; choose another one")


def _checkpoint_names(run: str, checkpoints: str) -> str:
    """Return a pattern for the names in a run's folder of checkpoints, or of the folder that holds them."""
    if not lies_in(checkpoints, run):
        return ""
    if lies_in(run, checkpoints):
        # A killed process leaves the file that it was writing.
        return rf"\.?({CHECKPOINT_FILE.pattern})(\.[0-9a-f]{{16}}\.partial)?"
    if is_remote(run):
        first = checkpoints.removeprefix(f"{run}/").split("/")[0]
    else:
        first = local_path(checkpoints).resolve().relative_to(local_path(run).resolve()).parts[0]
    if first in WRITTEN:
        raise OutputError(f"checkpoint_uri {checkpoints}: a run replaces its {first}; choose another folder")
    return re.escape(first).replace(re.escape("{run}"), "[0-9a-f]{16}")


def replaces_checkpoints(run: str | Path, where: str, config: TrainConfig, *, overwrite: bool) -> bool:
    """Return whether a run that does not resume from its own checkpoints replaces those that are there.

    Raises:
        OutputError: There is a finished run, or checkpoints of another one, that may not be replaced.
    """
    if config.resume == "auto" and not overwrite:
        metrics = read_if_there(f"{run}/{METRICS}")
        # A run that was interrupted before its first step has nothing to lose.
        if metrics is not None and _training_fact(metrics, "steps") != 0:
            raise OutputError(
                f"{run}: holds a finished run and {where} no checkpoint of it; pass --overwrite to replace it"
            )
        # There was no checkpoint. The upload of a killed pod may have added one since, which does no harm.
        return False
    # ``resume`` may name the folder of a run, which stands for the checkpoints in it.
    resume = config.resume.rstrip("/")
    sources = () if resume in ("auto", "never") else (resume, f"{resume}/{CHECKPOINTS}")
    if any(lies_in(source, where) for source in sources):
        return False
    if not overwrite:
        check_no_checkpoints(where)
    return overwrite


def replaced_processes(run: str | Path) -> dict[str, int]:
    """Return how many processes of each role a run has replaced, by its metrics; empty where there are none."""
    found = _training_fact(read_if_there(f"{run}/{METRICS}") or "", "replaced")
    return found if isinstance(found, dict) else {}


def _training_fact(metrics: str, name: str) -> Any:
    """Return what metrics say of the training; None where they are damaged."""
    try:
        return json.loads(metrics)["training"][name]
    except (ValueError, LookupError, TypeError):
        return None


@contextmanager
def local_run_folder(run: str | Path) -> Iterator[Path]:
    """Yield the local folder of a run; that of a remote one is uploaded at the end, also when the run fails.

    A run that fails before it has begun to replace an earlier one leaves the remote folder alone.

    Raises:
        OutputError: It cannot be uploaded; the message names the local folder that keeps the files.
    """
    if not is_remote(run):
        try:
            yield local_path(run)
        except OSError as error:
            raise failure_inside(run, local_path(run), error) from error
        return
    with scratch_folder() as folder:
        try:
            yield folder
        except BaseException:
            # The run's own error matters, not a failure to upload its logs.
            with suppress(OutputError):
                if (folder / SETTINGS).exists() or not {*WRITTEN} & entries(run):
                    replace_remote(folder, str(run), WRITTEN)
            raise
        try:
            replace_remote(folder, str(run), WRITTEN)
        except OutputError as error:
            # Do not lose hours of work because a bucket is unreachable just now.
            kept = Path(tempfile.mkdtemp(prefix="kept-dkan-run-"))
            folder.replace(kept)
            raise OutputError(f"{error}; what was to go there is in {kept}") from error


def make_logs_ready(folder: Path, *, is_resumed: bool) -> None:
    """Make the folder of a run's logs, without those of an earlier run."""
    if not is_resumed:
        remove(folder / LOGS)
    (folder / LOGS).mkdir(parents=True, exist_ok=True)


def make_ready(folder: Path, checkpoint: Checkpoint | None, *, keep_refit: bool = False) -> None:
    """Remove what an earlier run left, except its logs; a resumed run gets the model of its checkpoint.

    ``check_run_folder`` has checked that the files are a run's.

    Args:
        folder: The run's folder.
        checkpoint: The checkpoint that the run resumes from, if any.
        keep_refit: Whether to keep the folder of a second training, which may continue.
    """
    resumed = (METRICS,) if keep_refit else (METRICS, REFIT)
    gone = resumed if checkpoint is not None else tuple(name for name in reversed(WRITTEN) if name != LOGS)
    for name in gone:
        remove(folder / name)
    for path in asides(folder / MODEL_FOLDER):
        remove(path)
    if checkpoint is not None and checkpoint.model:
        write_model_files(folder / MODEL_FOLDER, checkpoint.model)
