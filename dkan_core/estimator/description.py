"""``estimator.json``: what a classifier's model folder says beside the model; and what any model folder says of one."""

from typing import Any

import numpy as np
from pydantic import Field

from dkan_core.model.model_folder import ESTIMATOR
from dkan_core.model.saved_model import SavedModel
from dkan_core.schemas import Schema

MODEL_PARAMETERS = ("members", "hidden", "num_centers", "dropout", "binary_dropout", "embedding_dim")
"""Parameters of the classifier that a model's architecture knows."""


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
    """One entry an evaluation; none where another command trained the model."""


def describe_classifier(saved: SavedModel) -> Description:
    """Return what a model folder says of the classifier in it.

    Raises:
        DataError: ``estimator.json`` is damaged.
    """
    return saved.files.read_json(Description, ESTIMATOR) if ESTIMATOR in saved.files.files else _describe_model(saved)


def _describe_model(saved: SavedModel) -> Description:
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
