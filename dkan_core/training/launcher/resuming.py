"""Where the checkpoints of a run are, and which one it resumes from."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dkan_core.config import EXECUTION_SETTINGS, ResolvedTrainConfig, TrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import ConfigError
from dkan_core.model.model_folder import REFIT_ROWS
from dkan_core.training.launcher.checkpoint_checks import (
    EXTENDING_SETTINGS,
    check_architecture,
    check_resumable,
    comparable_settings,
)
from dkan_core.training.launcher.remaining_work import has_no_time_left
from dkan_core.training.launcher.run_folder import replaces_checkpoints
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import CHECKPOINTS, OWN_CHECKPOINTS, load_source, source_of
from dkan_core.utils.file_names import METRICS
from dkan_core.utils.messages import flag
from dkan_core.utils.storage.files import read_if_there

logger = logging.getLogger(__name__)


def checkpoint_folder(config: TrainConfig, data: str) -> str:
    """Return the folder or URI that the settings name for checkpoints, with ``{run}`` filled in; empty for none.

    ``{run}`` is a digest of data and settings, so a run finds its own checkpoints when it is started again. It includes
    epochs and patience, although a resumed run may have more of them: otherwise runs of a sweep that differ only in
    these would share a folder.

    Args:
        config: Resolved settings.
        data: Fingerprint of the prepared data.
    """
    settings = comparable_settings(asdict(config))
    fixed = {name: value for name, value in settings.items() if name not in EXECUTION_SETTINGS}
    run = hashlib.sha256(json.dumps([data, fixed]).encode()).hexdigest()[:16]
    return (config.checkpoint_uri or "").replace("{run}", run).rstrip("/")


def resume_options(config: TrainConfig, folder: str) -> str:
    """Return the options that resume a run. They name the folder, as ``{run}`` changes with more epochs or patience.

    >>> resume_options(TrainConfig(checkpoint_uri="s3://bucket/{run}"), "s3://bucket/0123")
    '--resume auto --checkpoint-uri s3://bucket/0123'
    """
    uri = f" {flag('checkpoint-uri', folder)}" if "{run}" in (config.checkpoint_uri or "") else ""
    return f"--resume auto{uri}{' --refit' if config.refit else ''}"


def find_starting_point(
    run: str | Path, config: ResolvedTrainConfig, manifest: PreparedData, *, overwrite: bool
) -> tuple[str, Checkpoint | None, bool]:
    """Return the folder for a run's checkpoints, the checkpoint it resumes from, and whether to clear the folder first.

    Raises:
        ConfigError: The checkpoint that ``resume`` names does not exist, or has other data or settings.
        DataError: It cannot be read.
        OutputError: There is a finished run, or checkpoints of another one, that may not be replaced.
    """
    where = checkpoint_folder(config, manifest.fingerprint) or f"{run}/{CHECKPOINTS}"
    checkpoint = find_checkpoint(where, config, manifest.fingerprint, manifest.splits["train"].rows)
    if checkpoint is not None:
        check_architecture(checkpoint, manifest, config)
        if not config.refit and f'"{REFIT_ROWS}"' in (read_if_there(f"{run}/{METRICS}") or ""):
            logger.warning(
                "this run used --refit; resuming without it replaces its model with one trained on the train split only"
            )
        if has_no_time_left(checkpoint, config):
            used = checkpoint.ledger.used
            limit = config.max_seconds
            logger.warning("no time left: %.1f s of --max-seconds %g already used; no further steps", used, limit)
    replaces = checkpoint is None or config.resume not in OWN_CHECKPOINTS
    return where, checkpoint, replaces and replaces_checkpoints(run, where, config, overwrite=overwrite)


def find_checkpoint(where: str, config: ResolvedTrainConfig, data: str, rows: int) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from; None if it starts from the beginning.

    Args:
        where: Folder or URI of the run's own checkpoints.
        config: Resolved settings.
        data: Fingerprint of the data.
        rows: Rows of the train split.

    Raises:
        ConfigError: The checkpoint that ``resume`` names does not exist, or has other data or settings.
        DataError: It cannot be read.
    """
    if config.resume == "never":
        return None
    found = load_source(config.resume, where)
    if found is None:
        if config.resume != "auto":
            raise ConfigError(f"resume {config.resume}: there is no checkpoint at {source_of(config.resume, where)}")
        logger.info("no checkpoint in %s: training from the start", where)
        return None
    uri, checkpoint = found
    check_resumable(checkpoint, config, data, rows)
    _log_changes(checkpoint.settings, config)
    logger.info("resuming from %s", uri)
    return checkpoint


def _log_changes(before: Mapping[str, Any], config: ResolvedTrainConfig) -> None:
    """Log which settings of a resumed run differ from before."""
    for name in EXTENDING_SETTINGS:
        if name in before and before[name] != getattr(config, name):
            logger.info("%s: %s from here on, %s before", name, getattr(config, name), before[name])
