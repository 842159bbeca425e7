"""A classifier on disk: a model folder with ``estimator.json``, which says what the model does not know."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dkan_core.errors import DataError
from dkan_core.model.model_folder import ESTIMATOR
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.schemas import Schema
from dkan_core.utils.storage.remote import local_copy

# Parameters of the classifier that a model's architecture knows.
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

# Longer than any class's name: so that a damaged dtype, such as <U500000000, cannot ask for gigabytes.
MAX_CLASS_BYTES = 1 << 16


class Description(Schema):
    """A fitted classifier, but for its model."""

    parameters: dict[str, Any]
    """What the classifier was made with; its defaults stand for what is not there."""

    classes: list[bool | int | float | str]
    class_dtype: str
    n_features: int = Field(ge=1)

    feature_names: list[str] | None
    """Names of the columns in ``fit``, where all had one."""

    columns_by_name: bool = False
    """Whether a frame's columns are found by their names, rather than checked to be those of ``fit`` in their order."""

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
        """Return the classes as the classifier holds them."""
        return np.array(self.classes, dtype=self.class_dtype)


def read_classifier(folder: str | Path, parameters: Collection[str]) -> tuple[SavedModel, Description]:
    """Read a model folder, and what it says of the classifier in it.

    Args:
        folder: Path or fsspec URI of a model folder, or of a run with one in ``model``.
        parameters: Names of those that the classifier takes.

    Raises:
        DataError: The folder is no model, or a file of it is damaged.
    """
    with local_copy(folder) as path:
        saved = SavedModel(path)
        has_description = ESTIMATOR in saved.files.files
        description = saved.files.read_json(Description, ESTIMATOR) if has_description else describe_model(saved)
    unknown = sorted({*description.parameters} - {*parameters})
    if unknown:
        raise DataError(f"{folder}: {ESTIMATOR}: parameters: {unknown[0]!r} is none of FastKANClassifier")
    return saved, description


def describe_model(saved: SavedModel) -> Description:
    """Return a classifier for a model that another command trained: its classes are 0 and 1, of the labels' values."""
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
