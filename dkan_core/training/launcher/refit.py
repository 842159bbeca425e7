"""The second training of a run, whose model takes the place of the first one's: see ``training.state.refit_choices``.

It is a run of its own inside the first one's folder, with checkpoints of its own, so that it survives what a run does.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import ConfigError, DataError
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.model_folder import MODEL_FILES, read_files
from dkan_core.model.saved_model import SavedModel, write_model_files
from dkan_core.tracking.tracker import Trackers
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.launcher.remaining_work import ending_of
from dkan_core.training.launcher.resuming import find_checkpoint
from dkan_core.training.launcher.run import Outcome, RunStart, architecture_of_run, open_run
from dkan_core.training.launcher.run_folder import REFIT, make_logs_ready, make_ready
from dkan_core.training.launcher.run_log import EndLogger
from dkan_core.training.setup.architecture import settled
from dkan_core.training.setup.initial_model import InitialModel
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import OWN_CHECKPOINTS, clear_checkpoints
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.utils.file_names import MODEL_FOLDER
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.files import remove
from dkan_core.utils.storage.outputs import entries

logger = logging.getLogger(__name__)


def refit(start: RunStart, first: Outcome, fork_server: Callable[[], ForkServer]) -> Outcome:
    """Train once more, on train and valid together, and put that model in the place of the run's.

    Args:
        start: What the first training started from; its folder holds that training's model.
        first: What the first training ended with.
        fork_server: Returns the run's fork server.

    Returns:
        The outcome of the first training. If the second one was interrupted, or the first one after its last step, the
        outcome says so, and the first model stays.

    Raises:
        ConfigError: An earlier version wrote the first training's model, or the model that training started from is
            gone.
    """
    if first.interrupted:
        return _interrupted(first)
    model = SavedModel(start.folder / MODEL_FOLDER)
    second = _second_start(
        start, RefitChoices.of(model.metrics, first.history, model.config.ignored_features), model.config
    )
    folder, config, checkpoint = second.folder, second.config, second.checkpoint
    if checkpoint is None:
        check_initial(config, start.initial)
        _clear(f"{start.checkpoints}/{REFIT}")
    extent = counted(second.train_rows, "row"), counted(config.epochs, "epoch")
    logger.info("refit: training on train and valid together, %s, for %s", *extent)
    make_logs_ready(folder, is_resumed=checkpoint is not None)
    make_ready(folder, checkpoint)
    if checkpoint is None or ending_of(checkpoint, config, second.train_rows) != "epochs":
        # The end that is logged and tracked is that of the whole run.
        end = EndLogger(str(folder), folder / MODEL_FOLDER, "", "")
        with open_run(second, architecture_of_run(second)) as execution:
            done = execution.execute(fork_server(), end, Trackers([]))
        if done.ledger.ending == "interrupt":
            return _interrupted(first)
    write_model_files(start.folder / MODEL_FOLDER, read_files(folder / MODEL_FOLDER, MODEL_FILES))
    remove(folder)
    logger.info("refit: the saved model was trained on train and valid; its metrics are those of the first training")
    return first


def _interrupted(first: Outcome) -> Outcome:
    logger.warning("refit interrupted; the saved model was trained on the train split only")
    return replace(first, ledger=replace(first.ledger, ended=ENDINGS.index("interrupt")))


def _second_start(first: RunStart, choices: RefitChoices, architecture: ModelConfig) -> RunStart:
    """Return what the second training starts from: all rows, and what the first one has chosen."""
    config = settled(choices.settings(first.config), architecture)
    joined, checkpoints = first.manifest.with_valid_in_train(), f"{first.checkpoints}/{REFIT}/{choices.digest}"
    return replace(
        first,
        manifest=joined,
        folder=first.folder / REFIT,
        config=config,
        checkpoints=checkpoints,
        checkpoint=_checkpoint(checkpoints, config, joined),
        ranks=None,
        choices=choices,
    )


def check_initial(config: ResolvedTrainConfig, initial: InitialModel | None) -> None:
    """Raise ConfigError if a new second training would start from a model that is gone."""
    if config.init_from is not None and initial is None:
        raise ConfigError("refit: the init_from model no longer exists, and the second training starts from it too")


def _checkpoint(folder: str, config: ResolvedTrainConfig, joined: PreparedData) -> Checkpoint | None:
    """Return the checkpoint that the second training resumes from, if there is one that can be used."""
    if config.resume not in OWN_CHECKPOINTS:
        return None
    try:
        config = replace(config, resume="auto")
        return find_checkpoint(folder, config, joined.fingerprint, joined.splits["train"].rows)
    except (ConfigError, DataError) as error:
        logger.warning("refit: starting over: %s", error)
        return None


def _clear(folder: str) -> None:
    """Remove the checkpoints of all second trainings: none of this one can be used, and others had other choices."""
    for name in entries(folder):
        clear_checkpoints(f"{folder}/{name}")
