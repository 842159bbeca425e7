"""A classifier on disk: a model folder, with ``estimator.json`` for what the model itself lacks."""

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from sklearn.utils.validation import check_is_fitted

from dkan_core.errors import DataError
from dkan_core.integrations.sklearn.fitted import FittedClassifier
from dkan_core.integrations.sklearn.parameters import constructor_parameters, plain_parameters
from dkan_core.model.model_folder import ESTIMATOR, check_model_replaceable
from dkan_core.model.saved_model import SavedModel, save_model
from dkan_core.utils.schemas import Schema
from dkan_core.utils.storage.remote import local_copy

# Parameters of the classifier that are read from a model's architecture.
MODEL_PARAMETERS = (
    "model",
    "members",
    "hidden",
    "num_centers",
    "dropout",
    "binary_dropout",
    "embedding_dim",
    "sketch_rank",
)

# Limit, longer than any class's name, so that a damaged dtype such as <U500000000 cannot ask for gigabytes.
MAX_CLASS_BYTES = 1 << 16


class Description(Schema):
    """A fitted classifier without its model."""

    parameters: dict[str, Any]
    """The classifier's parameters; missing ones have their defaults."""

    classes: list[bool | int | float | str]
    class_dtype: str
    n_features: int = Field(ge=1)

    feature_names: list[str] | None
    """Names of the columns in ``fit``, where all had one."""

    columns_by_name: bool = False
    """Whether a frame's columns are found by name, and need not be those of ``fit`` in the same order."""

    history: list[dict[str, Any]]
    """One entry per evaluation; none where another command trained the model."""

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        try:
            if np.dtype(self.class_dtype).itemsize > MAX_CLASS_BYTES:
                raise ValueError(f"takes more than {MAX_CLASS_BYTES} bytes for each")
            self.class_array()
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"class_dtype: does not fit classes ({error})") from error
        return self

    def class_array(self) -> npt.NDArray[Any]:
        """Return the classes as an array, as ``classes_`` of the classifier."""
        return np.array(self.classes, dtype=self.class_dtype)


class SavingMixin(FittedClassifier):
    """The methods that save and load; a mixin for the classifier."""

    def __getstate__(self) -> dict[str, Any]:
        given: Any = super().__getstate__()
        state: dict[str, Any] = {**given}
        if "module_" in state:
            # A prediction leaves the model on the GPU; the process that reads a pickle may have none.
            state["module_"] = copy.deepcopy(self.module_).cpu()
        return state

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a model folder, without pickle, that ``load``, ``dkan predict`` and ``dkan evaluate`` read.

        Args:
            folder: Path or fsspec URI of a folder that is absent or empty, or holds an earlier model.
            overwrite: Whether an earlier model may be replaced.

        Raises:
            OutputError: ``folder`` cannot take the model; what was there stays.
            TypeError: JSON cannot hold the classes.
        """
        check_is_fitted(self)
        classes, names = self.classes_.tolist(), getattr(self, "feature_names_in_", None)
        if not all(isinstance(value, bool | int | float | str) for value in classes):
            raise TypeError(f"classes must be strings, numbers or booleans to be saved, got {classes}")
        description = Description(
            parameters=plain_parameters(self.get_params()),
            classes=classes,
            class_dtype=self.classes_.dtype.str,
            n_features=self.n_features_in_,
            feature_names=None if names is None else names.tolist(),
            columns_by_name=self._columns_by_name,
            history=self.history_,
        )
        check_model_replaceable(folder, overwrite=overwrite)
        also = {ESTIMATOR: description.model_dump()}
        save_model(folder, self.module_, self.preprocessor_, self.metrics_, also=also)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a classifier from any model folder: of ``save``, or of ``dkan train``, ``main`` or a pipeline.

        A model folder that ``save`` did not write lacks some information. Its classes are 0 and 1;
        ``feature_names_in_`` has the numeric columns first, then the categories. Arrays need this order too, and
        scikit-learn warns that they have no names. Columns of a frame are found by name, in any order and among
        others, as in ``dkan predict``. ``history_`` is empty, ``n_iter_`` is the epoch of the model, and parameters
        that only training uses have their defaults.

        Args:
            folder: Path or fsspec URI of a model folder, or of a run with one in ``model``.

        Raises:
            DataError: The folder is no model, or a file of it is damaged.
        """
        saved, description = _read_classifier(folder, cls._get_param_names())
        model = cls(**constructor_parameters(description.parameters))
        model.preprocessor_ = saved.preprocessor
        model.classes_ = description.class_array()
        model.n_features_in_ = description.n_features
        if description.feature_names is not None:
            model.feature_names_in_ = np.array(description.feature_names, dtype=object)
        model._columns_by_name = description.columns_by_name
        model._take_model(saved.module, saved.metrics)
        model._take_history(description.history)
        return model


def _read_classifier(folder: str | Path, parameters: Collection[str]) -> tuple[SavedModel, Description]:
    """Read a model folder and the description of the classifier in it.

    Args:
        folder: Path or fsspec URI of a model folder, or of a run with one in ``model``.
        parameters: Names of those that the classifier takes.

    Raises:
        DataError: The folder is no model, or a file of it is damaged.
    """
    with local_copy(folder) as path:
        saved = SavedModel(path)
        has_description = ESTIMATOR in saved.files.files
        description = saved.files.read_json(Description, ESTIMATOR) if has_description else _describe_model(saved)
    unknown = sorted({*description.parameters} - {*parameters})
    if unknown:
        raise DataError(f"{folder}: {ESTIMATOR}: parameters: {unknown[0]!r} is none of FastKANClassifier")
    return saved, description


def _describe_model(saved: SavedModel) -> Description:
    """Return the description of a model that another command trained: its classes are the values 0 and 1 of labels."""
    architecture, columns = saved.config, saved.preprocessor.columns
    labels = len(architecture.labels)
    return Description(
        parameters={name: getattr(architecture, name) for name in MODEL_PARAMETERS},
        classes=[*range(labels if labels > 1 else 2)],
        class_dtype=np.dtype(np.int64).str,
        n_features=len(columns),
        feature_names=columns,
        columns_by_name=True,
        history=[],
    )
