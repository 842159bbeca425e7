"""Training of a classifier on in-memory arrays, from scratch or from another classifier or model folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from sklearn.utils.validation import check_is_fitted

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.errors import ConfigError
from dkan_core.integrations.sklearn.fitted import FittedClassifier
from dkan_core.integrations.sklearn.rows import OUT_OF_X, reads_ids
from dkan_core.integrations.sklearn.targets import split_info
from dkan_core.model.model_folder import WEIGHTS
from dkan_core.model.saved_model import load_model
from dkan_core.training.roles.in_process import SingleResult, train_single
from dkan_core.training.setup.architecture import settled
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.initial_model import InitialModel, check_transfer, settings_from, warn_of_kept_shape
from dkan_core.training.state.refit_choices import RefitChoices, may_refit
from dkan_core.utils.arrays import Arrays, joined_rows

# The name in messages of the model to continue: ``init_model`` of ``fit``, or in ``partial_fit`` the classifier itself.
START = "the model to start from"


@dataclass(frozen=True)
class Initial:
    """A model to start from, and its weights as a file holds them."""

    model: InitialModel
    weights: bytes

    def complete(self, config: TrainConfig) -> TrainConfig:
        """Return settings with the model's architecture.

        Raises:
            ConfigError: A setting contradicts it.
        """
        return settings_from(config, self.model.architecture, self.weights, START)

    def label_names(self, names: list[str]) -> list[str]:
        """Return the names of labels: the model's if there is one label, as a ``y`` need not have a name."""
        known = self.model.architecture.labels
        return [*known] if len(names) == len(known) == 1 else names


def read_initial(init_model: Any) -> Initial:
    """Return the model to start from, given a fitted classifier, or the path or URI of a model folder.

    Raises:
        DataError: There is no model, or it is damaged.
        NotFittedError: The classifier is not fitted.
        TypeError: It is neither a classifier nor a path.
    """
    if isinstance(init_model, str | Path):
        saved = load_model(init_model)
        return Initial(InitialModel.of(saved.module, saved.preprocessor), saved.files.read(WEIGHTS))
    if not isinstance(init_model, FittedClassifier):
        raise TypeError(
            "init_model must be a fitted FastKANClassifier, or the path or URI of a model folder, got "
            f"{type(init_model).__name__}"
        )
    check_is_fitted(init_model)
    module = init_model.module_
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return Initial(InitialModel.of(module.cpu(), init_model.preprocessor_), save(state))


def print_evaluation(entry: Mapping[str, Any]) -> None:
    """Print the progress of a training, in a line."""
    print(  # noqa: T201 - what verbose asks for
        f"epoch {entry['epoch']:.2f}  loss {entry['loss']:.4f}  AP {entry['average_precision']:.4f}  "
        f"best {entry['best_average_precision']:.4f}"
    )


def train_on_arrays(
    arrays: dict[str, Arrays],
    names: list[str],
    positive: dict[str, str],
    preprocessor: Preprocessor,
    config: TrainConfig,
    initial: InitialModel | None,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None,
) -> tuple[SingleResult, str]:
    """Train in this process; return the result, and the fingerprint of the data.

    Args:
        arrays: Of train and valid, encoded.
        names: Of the labels.
        positive: By label, the value that counts as 1, as text; none where it is 0 or 1.
        preprocessor: The encoding.
        config: Settings for one worker.
        initial: What to start from. None: an untrained model.
        on_evaluation: Called with each evaluation. None: nothing is.

    Raises:
        ConfigError: A setting is wrong for these rows.
        DataError: The rows are not encoded as ``initial`` knows them.
    """
    train, valid = arrays["train"], arrays["valid"]
    prepared = PreparedData(
        preprocessor=preprocessor,
        labels=names,
        weight="sample_weight" if "weight" in train else None,
        splits={name: split_info(part["labels"], names) for name, part in arrays.items()},
        split_rule={"by": "estimator"},
        seed=config.seed,
        invalid={},
        sources=[],
        grouped="group" in train,
        positive=positive,
    )
    if initial is not None:
        check_transfer(initial, prepared, "X", None)
        warn_of_kept_shape(initial, config, START)
    _check_model_reads(preprocessor, config.model)
    resolved = resolve_for(config, prepared)
    result = train_single(ArraysReader(train), ArraysReader(valid), prepared, resolved, initial, on_evaluation)
    if config.refit and may_refit(result.ended):
        result = _refit(result, train, valid, prepared, resolved, initial)
    return result, prepared.fingerprint


def _check_model_reads(preprocessor: Preprocessor, model: str) -> None:
    """Raise ConfigError if the features hold ids that the model cannot read; say what the caller can do."""
    if model != "additive" or not preprocessor.sparse:
        return
    name = preprocessor.sparse[0].name
    what, remedy = f"column {name!r} of X holds IDs, which have", OUT_OF_X([name])
    if reads_ids(preprocessor.columns):
        what, remedy = "a sparse X of zeros and ones is read as IDs, which have", "give X.toarray()"
    raise ConfigError(f"model 'additive': {what} no curve; choose model='auto', or {remedy}")


def _refit(
    first: SingleResult,
    train: Arrays,
    valid: Arrays,
    prepared: PreparedData,
    config: ResolvedTrainConfig,
    initial: InitialModel | None,
) -> SingleResult:
    """Train once more, on all rows; the history stays that of the first training."""
    choices = RefitChoices.of(first.metrics, first.history, first.model.config.ignored_features)
    others = dict(valid)
    if "weight" in train:
        # Rows of an eval_set may lack weights: each then gets the mean of the others.
        others.setdefault("weight", np.full(len(valid["labels"]), train["weight"].mean(), np.float32))
    if "group" in train:
        # Rows of an eval_set have no groups: each counts as a group.
        others.setdefault("group", np.arange(len(valid["labels"])).astype(np.uint8))
    joined = {name: joined_rows([array, others[name]]) for name, array in train.items()}
    second = train_single(
        ArraysReader(joined),
        ArraysReader(valid),
        prepared.with_valid_in_train(),
        settled(choices.settings(config), first.model.config),
        initial,
        choices=choices,
    )
    return replace(second, history=first.history)
