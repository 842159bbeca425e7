"""``publish`` copies an approved model with its card to where others fetch it; ``choose_best`` picks one run."""

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from dkan_core.errors import DataError
from dkan_core.evaluation.metrics import finite_numbers
from dkan_core.model.model_folder import CARD, check_model_replaceable
from dkan_core.model.saved_model import SavedModel, Share, write_model_files
from dkan_core.report.templating import as_text
from dkan_core.utils.file_names import METRICS
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.outputs import OWN_FOLDERS, entries, foreign_contents
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.staging import staged_folder

# The table that ``publish`` adds to a model card: its head, and the head with rows.
TESTED = "\n| test metric | value |\n|---|---:|\n"
TESTED_TABLE = re.compile(rf"{re.escape(TESTED)}(\|.*\n)*".encode())

logger = logging.getLogger(__name__)


def publish(model: str | Path, to: str | Path, metrics: Mapping[str, Any] | None = None) -> None:
    """Copy a model to where others fetch it; an earlier one there is replaced once the new one is complete.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        to: Folder or URI for the model alone, without logs, history and checkpoints.
        metrics: Test metrics by name, for the model card; they replace those it has.

    Raises:
        DataError: The model cannot be read, or is incomplete.
        OutputError: ``to`` cannot take it, or holds something else.
    """
    with local_copy(model) as source:
        read = SavedModel(source).files
        files = {name: read.read(name) for name in read.files}
        if numbers := finite_numbers(metrics or {}):
            # In the order of their names: Kubeflow hands on metrics in any order.
            rows = "\n".join(f"| {name} | {as_text(value)} |" for name, value in sorted(numbers.items()))
            files[CARD] = TESTED_TABLE.sub(b"", files.get(CARD, b"")) + f"{TESTED}{rows}\n".encode()
        # After reading the model, so that a damaged model is reported first, whatever lies at the target.
        check_model_replaceable(to, overwrite=True)
        write_model_files(to, files)
    logger.info("published %s to %s", model, to)


class _RunMetrics(Schema):
    """The fields of a run's metrics that are read here."""

    model_config = ConfigDict(extra="ignore")

    average_precision: Share


def choose_best(runs: Sequence[str | Path], out: str | Path) -> int:
    """Copy the run with the highest validation average precision.

    Args:
        runs: Folders that ``train`` wrote.
        out: Folder for the best one: absent or empty.

    Returns:
        Its index in ``runs``; the first among equals.

    Raises:
        DataError: There are none, or a folder holds no finished run.
        OutputError: ``out`` holds something, or cannot be written; nothing half-written is left.
    """
    if not runs:
        raise DataError("there are no runs to choose from")
    scores = [_validation_score(Path(run)) for run in runs]
    best = max(range(len(scores)), key=scores.__getitem__)
    if found := entries(out) - OWN_FOLDERS:
        raise foreign_contents(out, min(found))
    names = sorted(entries(runs[best]), key=lambda name: name == METRICS)
    with staged_folder(out, names=names, overwrite=False) as folder:
        shutil.copytree(runs[best], folder, dirs_exist_ok=True)
    logger.info("best of %s: %s", [round(score, 5) for score in scores], runs[best])
    return best


def _validation_score(run: Path) -> float:
    try:
        return read_json(_RunMetrics, (run / METRICS).read_bytes(), str(run / METRICS)).average_precision
    except OSError as error:
        raise DataError(f"{run}: holds no finished run of `dkan train` ({error})") from error
