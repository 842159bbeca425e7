"""Starting from a saved model's weights instead of random ones (``TrainConfig.init_from``)."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dkan_core.config import ResolvedTrainConfig, TrainConfig, build_config
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import ConfigError, DataError
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.model_folder import CONFIG, WEIGHTS
from dkan_core.model.saved_model import SavedModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.gradient import untrained_model
from dkan_core.training.launcher.checkpoints import load_checkpoint, source_of
from dkan_core.utils.storage.files import read_if_there
from dkan_core.utils.storage.remote import local_copy

# Settings that a model has once and for all.
ARCHITECTURE_SETTINGS = (
    "model",
    "members",
    "hidden",
    "num_centers",
    "grid_min",
    "grid_max",
    "input_norm",
    "dropout",
    "binary_dropout",
    "embedding_dim",
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialModel:
    """What training starts from."""

    architecture: ModelConfig
    module: TabularFastKAN


def take_initial(
    config: TrainConfig, manifest: PreparedData, prepared: str | Path, checkpoints: str
) -> tuple[TrainConfig, InitialModel | None]:
    """Read the model that a run is to start from.

    Args:
        config: Settings as the user gave them.
        manifest: The data to train on.
        prepared: Where they lie, as messages call it.
        checkpoints: Folder or URI of the run's own checkpoints, where the settings name none.

    Returns:
        The settings with the architecture of the model, ``init_from`` being a digest of its weights; and the model.
        None where the settings name none, or where it is gone and a run that resumes has all in its checkpoint.

    Raises:
        ConfigError: A setting contradicts the model's architecture.
        DataError: There is no such model, or the data are not encoded as it knows them.
    """
    if config.init_from is None:
        return config, None
    place = _model_folder(config.init_from)
    if place is None:
        return _as_checkpoint_says(config, checkpoints), None
    with local_copy(place) as folder:
        saved = SavedModel(folder)
        digest = hashlib.sha256(saved.files.read(WEIGHTS)).hexdigest()
    _check_data(saved, manifest, prepared, config.init_from)
    architecture = {name: getattr(saved.config, name) for name in ARCHITECTURE_SETTINGS}
    logger.info("starting from the weights of %s", config.init_from)
    # A digest rather than the place: another model there is another run, and its checkpoints are no longer this run's.
    completed = replace(_complete(config, architecture), init_from=f"sha256:{digest}")
    return completed, InitialModel(saved.config, saved.module)


def with_architecture(config: TrainConfig, manifest: PreparedData, prepared: str | Path) -> TrainConfig:
    """Return the settings of a run that only measures: with the architecture of ``init_from``, but not its weights.

    Args:
        config: Settings as the user gave them.
        manifest: The data to train on.
        prepared: Where they lie, as messages call it.

    Raises:
        UserError: As ``take_initial``.
    """
    completed, _ = take_initial(replace(config, resume="never"), manifest, prepared, "")
    return replace(completed, init_from=None)


def initial_model(
    architecture: ModelConfig, manifest: PreparedData, config: ResolvedTrainConfig, initial: InitialModel | None
) -> TabularFastKAN:
    """Return the model that training starts from: that of ``init_from``, not calibrated, or an untrained one."""
    model = untrained_model(architecture, manifest, config)
    if initial is not None:
        model.load_state_dict(initial.module.state_dict())
        # Calibration is fitted anew on the validation split of the new data.
        model.calibrate()
    return model


def _model_folder(place: str) -> str | None:
    """Return the folder or URI of a model, given that or its run's; None where there is none."""
    root = place.rstrip("/")
    for folder in (root, f"{root}/model"):
        if read_if_there(f"{folder}/{CONFIG}") is not None:
            return folder
    return None


def _check_data(saved: SavedModel, manifest: PreparedData, prepared: str | Path, place: str) -> None:
    if {*saved.config.labels} != {*manifest.labels}:
        raise DataError(
            f"{prepared}: has labels {', '.join(manifest.labels)}; the model of init_from, {place}, was trained for "
            f"{', '.join(saved.config.labels)}: train without --init-from"
        )
    if list(saved.config.labels) != manifest.labels or saved.preprocessor != manifest.preprocessor:
        raise DataError(
            f"{prepared}: is encoded differently from the model of init_from, {place}, knows; "
            f"prepare its source with `dkan prepare ... --like {place}`, or train without --init-from"
        )


def _complete(config: TrainConfig, architecture: Mapping[str, Any]) -> TrainConfig:
    """Return the settings with an architecture; one that is given and another raises ConfigError."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, value in architecture.items():
        if getattr(config, name) not in (defaults[name], value):
            raise ConfigError(
                f"{name} {getattr(config, name)}: the model of init_from has {value}, which stays as it is; "
                "leave out that setting, or train without --init-from"
            )
    return replace(config, **architecture)


def _as_checkpoint_says(config: TrainConfig, checkpoints: str) -> TrainConfig:
    """Return the settings of a run that resumes, whose checkpoint holds what the model of ``init_from`` gave it."""
    missing = DataError(f"init_from {config.init_from}: no model there; expected a folder that `dkan train` wrote")
    place = source_of(config.resume, (config.checkpoint_uri or checkpoints).rstrip("/"))
    if config.resume == "never" or "{run}" in place:
        raise missing
    found = load_checkpoint(place.rstrip("/"))
    if found is None:
        raise missing
    settings = found[1].settings
    if not isinstance(settings.get("init_from"), str):
        raise ConfigError(
            f"{found[0]}: was trained without init_from, not with {config.init_from}; "
            "resume with the same, or train without --resume"
        )
    theirs = build_config(TrainConfig, {name: settings[name] for name in ARCHITECTURE_SETTINGS if name in settings})
    architecture = {name: getattr(theirs, name) for name in ARCHITECTURE_SETTINGS}
    logger.info("init_from %s is gone; the checkpoint holds what is needed", config.init_from)
    return replace(_complete(config, architecture), init_from=settings["init_from"])
