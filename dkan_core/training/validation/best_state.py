"""The state of the best evaluation's step, as a checkpoint of its own: what ``--resume best`` resumes from."""

from pathlib import Path
from typing import Any

from dkan_core.model.model_folder import MODEL_FILES, read_files
from dkan_core.training.launcher.checkpoint_file import Checkpoint, run_facts
from dkan_core.training.launcher.checkpoints import BEST_FILE, CHECKPOINTS, write_checkpoint
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.snapshots import StateSnapshot
from dkan_core.utils.storage.paths import is_remote, local_path


def best_path(folder: Path, checkpoints: str) -> Path:
    """Return where the evaluator writes the best state: in the folder for checkpoints, or beside where that is remote.

    Args:
        folder: Of the run, on this machine.
        checkpoints: Folder or URI for checkpoints.
    """
    return (folder / CHECKPOINTS if is_remote(checkpoints) else local_path(checkpoints)) / BEST_FILE


def write_best(spec: ProcessSpec, data: str, each: StateSnapshot, history: list[dict[str, Any]], model: Path) -> None:
    """Write the state that was scored best as a checkpoint.

    Args:
        spec: Of the evaluator.
        data: Fingerprint of the prepared data.
        each: The snapshot that was scored.
        history: Evaluations so far.
        model: Folder of the model that was made of it.

    Raises:
        OutputError: It cannot be written; an earlier one stays.
    """
    step = each.snapshot.step
    checkpoint = Checkpoint(
        **run_facts(data, spec.model, spec.config),
        ledger=each.ledger,
        state_KP=each.state_KP,
        history=[entry for entry in history if entry["step"] <= step],
        model=read_model(model),
    )
    write_checkpoint(spec.best, checkpoint)


def read_model(folder: Path) -> dict[str, bytes]:
    """Read the files of a model folder that may be replaced meanwhile; empty where there is no whole one."""
    try:
        files = read_files(folder, MODEL_FILES)
    except FileNotFoundError:
        return {}
    return files if len(files) == len(MODEL_FILES) else {}
