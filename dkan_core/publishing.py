"""``publish``: an approved model, with its card, where others fetch it; ``choose_best``: one run of several."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dkan_core.errors import DataError
from dkan_core.model.checkpoint import CARD, MODEL_FILES, SavedModel
from dkan_core.storage import local_copy, staged_folder, write_atomic

RUN_METRICS = "metrics.json"

logger = logging.getLogger(__name__)


def publish(model: str | Path, to: str | Path, metrics: Mapping[str, Any] | None = None) -> None:
    """Copy a model to where others fetch it, in the place of an earlier one.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        to: Folder or URI for the model alone, without logs, history and checkpoints.
        metrics: Test metrics by name, for the model card.

    Raises:
        DataError: The model cannot be read, or is not whole.
        OutputError: ``to`` cannot take it, or holds something else.
    """
    with local_copy(model) as source:
        folder = SavedModel(source).folder
        names = [path.name for path in sorted(folder.iterdir()) if path.name not in MODEL_FILES]
        with staged_folder(to, names=[*names, *MODEL_FILES], overwrite=True) as target:
            shutil.copytree(folder, target, dirs_exist_ok=True)
            write_atomic(target / CARD, (folder / CARD).read_text(encoding="utf-8") + _tested(metrics or {}))
    logger.info("published %s to %s", model, to)


def _tested(metrics: Mapping[str, Any]) -> str:
    """Return what a model card says of the test."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    if not numbers:
        return ""
    rows = "\n".join(f"| {name} | {value} |" for name, value in numbers.items())
    return f"\n| test metric | value |\n|---|---:|\n{rows}\n"


def choose_best(runs: Sequence[str | Path], out: str | Path) -> int:
    """Copy the run with the highest validation average precision.

    Args:
        runs: Folders that ``train`` wrote.
        out: Folder for the best one: absent or empty.

    Returns:
        Its place in ``runs``; the first of equals.

    Raises:
        DataError: A folder holds no finished run.
    """
    scores = [_validation_score(Path(run)) for run in runs]
    best = max(range(len(scores)), key=scores.__getitem__)
    shutil.copytree(runs[best], out, dirs_exist_ok=True)
    logger.info("best of %s: %s", [round(score, 5) for score in scores], runs[best])
    return best


def _validation_score(run: Path) -> float:
    try:
        return float(json.loads((run / RUN_METRICS).read_text(encoding="utf-8"))["average_precision"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{run}: holds no finished run of `dkan train` ({error})") from error
