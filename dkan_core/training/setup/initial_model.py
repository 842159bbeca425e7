"""Starting from a saved model's weights instead of random ones (``TrainConfig.init_from``)."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dkan_core.config import ResolvedTrainConfig, TrainConfig, build_config
from dkan_core.data.encoding.extending import compare_encodings
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.origin import trained_on
from dkan_core.data.loading.loader import RowReader
from dkan_core.data.source.positive import check_positive
from dkan_core.errors import ConfigError, DataError
from dkan_core.model.architecture import ModelConfig, ignoring
from dkan_core.model.base import TabularModel
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.model_folder import REFIT_ROWS, WEIGHTS, find_model
from dkan_core.model.saved_model import load_model
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.monotone import parse_monotone
from dkan_core.training.setup.parameter_groups import EMBEDDINGS, learning_rate_factors
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.setup.weight_transfer import reading_all, transferred_state, widened_architecture
from dkan_core.training.state.adamw import BETA1, BETA2
from dkan_core.training.state.checkpoint_store import (
    BEST_FILE,
    CHECKPOINTS,
    OWN_CHECKPOINTS,
    load_checkpoint,
    load_source,
)
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.utils.arrays import Float32
from dkan_core.utils.messages import counted, flag, listed_names

# Settings that a saved model fixes.
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
    "sketch_rank",
)

# The model's name in messages; callers of a classifier pass another one.
OF_INIT_FROM = "the model of init_from"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InitialModel:
    """What training starts from."""

    module: TabularModel
    preprocessor: Preprocessor
    moments_2P: Float32 | None = None
    """Moments of its optimizer, free of bias; None: zeros."""

    origins: tuple[dict[str, Any], ...] = ()
    """Origins of the rows of this model's training and all earlier ones, as ``trained_on`` returns them."""

    @classmethod
    def of(cls, module: TabularModel, preprocessor: Preprocessor) -> "InitialModel":
        """Return a trained model to start from; of a blend, its network, extended to read all columns."""
        module = module.network_alone() if isinstance(module, BlendedFastKAN) else module
        if isinstance(module, TabularFastKAN):
            module = reading_all(module, preprocessor)
        return cls(module=module, preprocessor=preprocessor)

    @property
    def architecture(self) -> ModelConfig:
        """Architecture of the model."""
        return self.module.config

    def fits(self, prepared: PreparedData) -> bool:
        """Return whether data have the model's labels and the same encoding of the same columns."""
        return list(self.architecture.labels) == prepared.labels and self.preprocessor == prepared.preprocessor


def take_initial(
    config: TrainConfig, manifest: PreparedData, prepared: str | Path, checkpoints: str
) -> tuple[TrainConfig, InitialModel | None]:
    """Read the model that a run is to start from.

    Args:
        config: Settings as the user gave them.
        manifest: Manifest of the data to train on.
        prepared: Location of the data, for messages.
        checkpoints: Folder or URI of the run's own checkpoints, where the settings name none.

    Returns:
        The settings with the architecture of the model, ``init_from`` being a digest of its weights; and the model.
        None if the settings name none, or if it is gone and a resumed run has everything in its checkpoint.

    Raises:
        ConfigError: A setting contradicts the model's architecture.
        DataError: There is no such model, or the data have another encoding.
    """
    if config.init_from is None:
        return config, None
    uri = find_model(config.init_from)
    if uri is None:
        return _as_checkpoint_says(config, checkpoints), None
    saved = load_model(uri)
    initial = replace(InitialModel.of(saved.module, saved.preprocessor), origins=tuple(trained_on(saved.metrics)))
    parts = [*config.freeze, *config.lr_multipliers]
    if saved.config.ignored_features and any(part.startswith(EMBEDDINGS) for part in parts):
        raise ConfigError(
            f"freeze, lr_multipliers: columns that the model has ignored get embeddings, which are renumbered; name "
            f"{EMBEDDINGS.rstrip('.')} as a whole"
        )
    check_transfer(initial, manifest, str(prepared), config.init_from)
    if config.init_optimizer == "kept":
        if REFIT_ROWS in saved.metrics:
            raise ConfigError(
                "init_optimizer kept: the model comes from a refit, which saves no optimizer state; leave it out"
            )
        if saved.config.ignored_features:
            raise ConfigError("init_optimizer kept: there are columns that the model has ignored so far; leave it out")
        initial = replace(initial, moments_2P=_kept_moments(initial, manifest, uri))
    learning_rate_factors(
        initial.module, config, manifest.splits["train"].rows
    )  # before anything is written: a part may not be there
    logger.info("starting from the weights of %s", config.init_from)
    warn_of_kept_shape(initial, config)
    return settings_from(config, initial.architecture, saved.files.read(WEIGHTS)), initial


def warn_of_kept_shape(initial: InitialModel, config: TrainConfig, model: str = OF_INIT_FROM) -> None:
    """Warn if a model, called ``model`` in messages, keeps other members, pairs or monotone columns than asked for."""
    shape = initial.architecture.additive
    if config.quality == "best":  # which is more members
        logger.warning(
            "quality best has no effect: %s keeps its %s", model, counted(initial.architecture.members, "member")
        )
    if shape is None:
        return
    if config.pairs != "auto" and int(config.pairs) < len(shape.pairs):
        logger.warning("pairs %s has no effect: %s keeps its %d", config.pairs, model, len(shape.pairs))
    names = [feature.name for feature in initial.preprocessor.numeric]
    if config.monotone and {*parse_monotone(config.monotone, names)} != {*shape.monotone}:
        kept = ", ".join(f"{names[feature]}:{'+' if sign > 0 else '-'}" for feature, sign in shape.monotone) or "none"
        asked = ", ".join(config.monotone)
        logger.warning("monotone %s has no effect: %s keeps its own, %s", asked, model, kept)


def settings_from(config: TrainConfig, known: ModelConfig, weights: bytes, model: str = OF_INIT_FROM) -> TrainConfig:
    """Return settings with the architecture of a model, ``init_from`` being a digest of its weights.

    Raises:
        ConfigError: A setting contradicts the model's architecture.
    """
    digest = hashlib.sha256(weights).hexdigest()
    architecture = {name: getattr(known, name) for name in ARCHITECTURE_SETTINGS}
    # A digest rather than the URI: with another model at that URI, the run is another one and cannot use its
    # checkpoints.
    return replace(_complete(config, architecture, model), init_from=f"sha256:{digest}")


def starting_architecture(
    reader: RowReader,
    prepared: PreparedData,
    config: ResolvedTrainConfig,
    initial: InitialModel | None,
    choices: RefitChoices | None,
) -> ModelConfig:
    """Return the architecture at the start: that of ``init_from``, extended by what its data did not have."""
    if initial is not None and initial.fits(prepared):
        return initial.architecture
    chosen = choose_architecture(reader, prepared, config)
    if initial is None:
        return chosen if choices is None else ignoring(chosen, choices.ignored_features)
    return widened_architecture(initial.architecture, initial.preprocessor, chosen, prepared, config)


def with_architecture(config: TrainConfig, manifest: PreparedData, prepared: str | Path) -> TrainConfig:
    """Return the settings of a run that only measures: with the architecture of ``init_from``, without its weights.

    Raises:
        UserError: As ``take_initial``.
    """
    completed, _ = take_initial(replace(config, resume="never"), manifest, prepared, "")
    return replace(completed, init_from=None, freeze=(), init_optimizer="fresh")


def initial_model(
    architecture: ModelConfig, manifest: PreparedData, config: ResolvedTrainConfig, initial: InitialModel | None
) -> TabularModel:
    """Return the model that training starts from: that of ``init_from``, not calibrated, or an untrained one."""
    model = untrained_model(architecture, manifest, config)
    if initial is not None:
        state = initial.module.state_dict()
        if not initial.fits(manifest):
            assert isinstance(initial.module, TabularFastKAN) and isinstance(model, TabularFastKAN), "check_transfer"
            state = transferred_state(initial.module, model, initial.preprocessor, manifest.preprocessor)
        model.load_state_dict(state)
        # Calibration is fitted again on the validation split of the new data.
        model.calibrate()
    return model


def check_transfer(initial: InitialModel, manifest: PreparedData, prepared: str, uri: str | None) -> None:
    """Check that data are the model's, or have more columns or labels; log what keeps its weights and what does not.

    Args:
        initial: The model.
        manifest: Manifest of the data to train on.
        prepared: Location of the data, for messages.
        uri: Location of the model, for messages. None: it was passed to the ``fit`` of a classifier.

    Raises:
        DataError: A label has another meaning, nothing was added and the encodings still differ, or no column fits.
    """
    model = "init_model" if uri is None else f"the model of init_from, {uri},"
    check_positive(manifest.positive, prepared, initial.architecture.positive, model)
    if initial.fits(manifest):
        return
    labels = initial.architecture.labels
    if not {*labels} & {*manifest.labels}:
        raise DataError(
            f"{prepared}: has labels {', '.join(manifest.labels)}; {model} was trained for {', '.join(labels)}: train "
            "without it"
        )
    found = compare_encodings(initial.preprocessor, manifest.preprocessor)
    new_labels = [name for name in manifest.labels if name not in labels]
    remedy = "" if uri is None else f"prepare its source with `dkan prepare ... {flag('like', uri)}`, or "
    advice = f"{remedy}train without it"
    if not found.added and not new_labels and initial.preprocessor != manifest.preprocessor:
        raise DataError(f"{prepared}: is not encoded as {model} knows it{found.differing()}; {advice}")
    if initial.architecture.sketch_rank:
        raise DataError(
            f"{prepared}: has other columns or labels; {model} has a sketched first layer "
            f"(sketch_rank {initial.architecture.sketch_rank}), which is for its own alone; {advice}"
        )
    if not isinstance(initial.module, TabularFastKAN):
        raise DataError(
            f"{prepared}: has other columns or labels; {model} is additive, and cannot be extended; {advice}"
        )
    if not found.kept:
        raise DataError(
            f"{prepared}: no column is encoded as {model} knows it{found.differing()}; "
            f"{advice.replace(' --like', ' --extend --like')}"
        )
    lost_labels = [name for name in labels if name not in manifest.labels]
    for what, names in (
        ("columns that start from scratch", [*found.added, *found.changed]),
        ("labels that start from scratch", new_labels),
        ("columns of the model that are gone", found.lost),
        ("labels of the model that are gone", lost_labels),
    ):
        if names:
            logger.warning("%s: %s", what, listed_names(names))
    if found.changed and uri is not None:
        logger.warning("prepare with `%s --extend` to keep their encoding and weights", flag("like", uri))
    logger.info("%d columns keep their weights", len(found.kept))


def _kept_moments(initial: InitialModel, manifest: PreparedData, model: str) -> Float32:
    """Return AdamW's moments that belong to a model, without the bias of moments after few steps.

    Raises:
        ConfigError: There are none, or they belong to another model.
        DataError: The checkpoint is damaged.
    """
    parent, _, name = model.rpartition("/")
    where = f"{(parent or '.') if name == 'model' else model}/{CHECKPOINTS}/{BEST_FILE}"
    if not initial.fits(manifest):
        raise ConfigError("init_optimizer kept: there are columns or labels that the model does not know; leave it out")
    found = load_checkpoint(where)
    if found is None:
        raise ConfigError(
            f"init_optimizer kept: there is no checkpoint at {where}; give the run's folder, or leave it out"
        )
    checkpoint = found[1]
    values_P = flatten(initial.module).numpy()
    if not any(np.array_equal(values_P, each_P) for each_P in checkpoint.state_KP[::3]):
        raise ConfigError(f"init_optimizer kept: {where} belongs to another model than {model}; leave it out")
    settings = checkpoint.settings
    if settings["mode"] == "async":
        raise ConfigError(f"init_optimizer kept: {where} is of mode async, whose workers have moments of their own")
    moments_2P = np.array(checkpoint.state_KP[1:3])
    # Moments that the earlier run had kept are already free of bias.
    if settings.get("init_optimizer", "fresh") == "fresh":
        rises = [1 - beta**checkpoint.ledger.step for beta in (BETA1, BETA2)]
        moments_2P /= np.array(rises, np.float32)[:, None]
    return moments_2P


def _complete(config: TrainConfig, architecture: Mapping[str, Any], model: str = OF_INIT_FROM) -> TrainConfig:
    """Return the settings with an architecture; raise ConfigError if a given setting contradicts it."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, value in architecture.items():
        if getattr(config, name) not in (defaults[name], value):
            raise ConfigError(
                f"{name} {getattr(config, name)}: {model} has {value}, which stays as it is; leave out that setting, "
                "or train without that model"
            )
    return replace(config, **architecture)


def _as_checkpoint_says(config: TrainConfig, checkpoints: str) -> TrainConfig:
    """Return the settings of a resumed run, with what its checkpoint has from the model of ``init_from``."""
    missing = DataError(f"init_from {config.init_from}: no model there; expected a folder that `dkan train` wrote")
    uri = (config.checkpoint_uri or checkpoints).rstrip("/")
    if config.resume == "never" or (config.resume in OWN_CHECKPOINTS and "{run}" in uri):
        raise missing
    found = load_source(config.resume, uri)
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
