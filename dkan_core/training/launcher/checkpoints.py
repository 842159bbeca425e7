"""Where a run's checkpoints lie, and which of them it resumes from."""

import hashlib
import json
import logging
from dataclasses import asdict

from dkan_core.config import EXECUTION_SETTINGS, ResolvedTrainConfig, TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.training.launcher.resuming import check_resumable, comparable_settings, log_changes
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import load_checkpoint, source_of
from dkan_core.utils.hints import flag

logger = logging.getLogger(__name__)


def checkpoint_folder(config: TrainConfig, data: str) -> str:
    """Return the folder or URI that the settings name for checkpoints, with ``{run}`` filled in; empty for none.

    A run that is started again with the same data and settings finds its own checkpoints there, and no other does.
    Epochs and patience are among these settings, though a finished run may be given more of them: those of a sweep are
    different runs, which must not write into one folder.

    Args:
        config: Resolved settings.
        data: Fingerprint of the prepared data.
    """
    settings = comparable_settings(asdict(config))
    fixed = {name: value for name, value in settings.items() if name not in EXECUTION_SETTINGS}
    run = hashlib.sha256(json.dumps([data, fixed]).encode()).hexdigest()[:16]
    return (config.checkpoint_uri or "").replace("{run}", run).rstrip("/")


def resume_options(config: TrainConfig, folder: str) -> str:
    """Return the options that resume a run, also with more epochs or patience: ``{run}`` would be another folder then.

    >>> resume_options(TrainConfig(checkpoint_uri="s3://bucket/{run}"), "s3://bucket/0123")
    '--resume auto --checkpoint-uri s3://bucket/0123'
    """
    place = f" {flag('checkpoint-uri', folder)}" if "{run}" in (config.checkpoint_uri or "") else ""
    return f"--resume auto{place}{' --refit' if config.refit else ''}"


def find_checkpoint(where: str, config: ResolvedTrainConfig, data: str, rows: int) -> Checkpoint | None:
    """Return the checkpoint that a run is to resume from, if it is to and there is one.

    Args:
        where: Folder or URI of the run's own checkpoints.
        config: Resolved settings.
        data: Fingerprint of the prepared data.
        rows: Rows of its train split.

    Raises:
        ConfigError: The one that was asked for is not there, or is of other data or settings.
        DataError: It cannot be read.
    """
    if config.resume == "never":
        return None
    source = source_of(config.resume, where)
    found = load_checkpoint(source)
    if found is None:
        if config.resume != "auto":
            raise ConfigError(f"resume {config.resume}: there is no checkpoint at {source}")
        logger.info("no checkpoint in %s: training from the start", where)
        return None
    uri, checkpoint = found
    check_resumable(checkpoint, config, data, rows)
    log_changes(checkpoint.settings, config)
    logger.info("resuming from %s", uri)
    return checkpoint
