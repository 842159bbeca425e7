"""Parameters of ``FastKANClassifier``: those that a loaded one has, and those that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dkan_core import FastKANClassifier, TrainConfig, main
from tests.integrations.sklearn.test_estimator import frame, small


@pytest.mark.parametrize(
    "parameters",
    [
        {"class_weight": {np.str_("late"): np.float64(2), "on time": 1}, "hidden": (np.int64(8),)},
        {"model": "additive", "monotone": ("size:+",), "label_weights": (1.0,), "hidden": None},
    ],
)
def test_loaded_classifier_is_made_as_the_saved_one_was(parameters: dict[str, Any], tmp_path: Path) -> None:
    X, y = frame(200)
    model = small(epochs=1, **parameters).fit(X, y)
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(clone(loaded).fit(X, y).predict_proba(X), model.predict_proba(X))


def test_classifier_of_another_commands_model_trains_such_a_model(tmp_path: Path) -> None:
    X, y = frame(200)
    main((X, y == "late"), (X, y == "late"), TrainConfig(model="additive", epochs=1), run=tmp_path / "run")
    loaded = FastKANClassifier.load(tmp_path / "run")
    assert clone(loaded).set_params(epochs=1).fit(X, y).architecture_.model == "additive"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("validation_fraction", 1.0, "a number between 0 and 1, got 1.0"),
        ("validation_fraction", "0.1", "a number between 0 and 1, got '0.1'"),
        ("n_jobs", 0, "None or a whole number other than 0, got 0"),
        ("n_jobs", 1.5, "None or a whole number other than 0, got 1.5"),
        ("n_jobs", "2", "None or a whole number other than 0, got '2'"),
    ],
)
def test_value_that_is_none_of_a_parameter_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be {message}"):
        small(**{name: value}).fit(*frame(200))
