"""``FastKANClassifier`` goes on from a model: ``fit(init_model=...)`` and ``partial_fit``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.dummy import DummyClassifier

from dkan_core import ConfigError, DataError, FastKANClassifier, TrainResult
from dkan_core.data.source.frames import to_table
from dkan_core.model.blended import BlendedFastKAN

SMALL: dict[str, Any] = {"hidden": (8,), "epochs": 3, "batch_size": 64, "random_state": 0, "n_jobs": 1, "device": "cpu"}
STILL = {**SMALL, "learning_rate": 1e-12, "epochs": 1, "blend": False}


def rows(count: int = 500, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"size": rng.normal(size=count), "site": rng.choice(["north", "south"], count)})
    chance = 2 * X["size"] + 2 * (X["site"] == "north")
    return X, pd.Series(np.where(rng.random(count) < 1 / (1 + np.exp(1 - chance)), "late", "on time"), name="arrival")


@pytest.fixture(scope="module")
def first() -> FastKANClassifier:
    return FastKANClassifier(**SMALL, learning_rate=0.02, blend=False).fit(*rows())


def test_without_learning_the_order_stays_that_of_the_initial_model(first: FastKANClassifier, tmp_path: Path) -> None:
    X, y = rows(seed=1)
    first.save(tmp_path / "model")
    expected = first.decision_function(X).argsort()
    for place in (first, tmp_path / "model"):
        again = FastKANClassifier(**STILL).fit(X, y, init_model=place)
        assert again.preprocessor_ == first.preprocessor_ and again.metrics_["init_from"].startswith("sha256:")
        assert np.array_equal(again.decision_function(X).argsort(), expected)
    # A column that is new adds nothing before it is learned from.
    wider = X.assign(hour=np.arange(len(X)) % 24, kind=np.where(np.arange(len(X)) % 3 == 0, "a", "b"))
    again = FastKANClassifier(**STILL).fit(wider, y, init_model=first)
    assert again.preprocessor_.columns == ["size", "hour", "site", "kind"]
    assert np.array_equal(again.decision_function(wider).argsort(), expected)


def test_a_blend_goes_on_from_its_network() -> None:
    X, y = rows(4000)
    # So little learned that the additive model is better.
    blend = FastKANClassifier(**{**SMALL, "hidden": (2,), "epochs": 1, "learning_rate": 1e-4}).fit(X, y)
    assert isinstance(blend.module_, BlendedFastKAN)
    again = FastKANClassifier(**{**STILL, "hidden": (2,)}).fit(X, y, init_model=blend)
    expected = blend.module_.network_alone().state_dict()
    for name, tensor in again.module_.state_dict().items():
        if not name.startswith("calibration"):
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-4)


def test_partial_fit_of_a_blend_warns_that_its_network_goes_on_alone() -> None:
    X, y = rows(4000)
    blend = FastKANClassifier(**{**SMALL, "hidden": (2,), "epochs": 1, "learning_rate": 1e-4}).fit(X, y)
    assert isinstance(blend.module_, BlendedFastKAN)
    with pytest.warns(UserWarning, match="partial_fit continues the network alone") as seen:
        blend.partial_fit(X, y)
    assert seen[0].filename == __file__ and blend.architecture_.blended is None
    blend.partial_fit(X, y)  # without a warning: there is no blend any more


def test_partial_fit_learns_at_the_rate_of_training_from_scratch_and_fit_at_a_tenth(first: FastKANClassifier) -> None:
    X, y = rows(seed=1)
    settings = {**SMALL, "epochs": 1, "blend": False}
    at_default, at_rate = (FastKANClassifier(**settings, learning_rate=rate) for rate in (None, 4e-3))
    for model in (at_default, at_rate):
        model.partial_fit(*rows()).partial_fit(X, y)
    np.testing.assert_array_equal(at_default.predict_proba(X), at_rate.predict_proba(X))
    again, at_tenth = (
        FastKANClassifier(**settings, learning_rate=rate).fit(X, y, init_model=first) for rate in (None, 4e-4)
    )
    np.testing.assert_array_equal(again.predict_proba(X), at_tenth.predict_proba(X))


def test_more_rows_by_and_by_make_it_better(first: FastKANClassifier) -> None:
    X, y = rows(4000)
    fresh, truth = rows(2000, seed=9)
    model = FastKANClassifier(**SMALL)
    scores = []
    for start in range(0, 4000, 1000):
        part = slice(start, start + 1000)
        encoding = getattr(model, "preprocessor_", None)
        model.partial_fit(X[part], y[part], classes=["on time", "late"])
        assert encoding is None or model.preprocessor_ == encoding
        scores.append(model.score(fresh, truth))
    assert model.classes_.tolist() == ["late", "on time"] and model.n_iter_ == 1
    assert scores[-1] > scores[0] - 0.01 and scores[-1] > 0.75
    with pytest.raises(ValueError, match=r"y holds .*never"):
        model.partial_fit(X[:50], np.where(np.arange(50) % 2, "never", "late"))


def test_what_does_not_fit_is_refused(first: FastKANClassifier, trained: TrainResult) -> None:
    X, y = rows()
    wrong: Any
    for wrong in (3, DummyClassifier().fit(X, y)):
        with pytest.raises(TypeError, match=f"init_model must be a fitted FastKANC.*, got {type(wrong).__name__}"):
            FastKANClassifier(**SMALL).fit(X, y, init_model=wrong)
    with pytest.raises(DataError, match="X: column 'site' is missing; init_model was trained with it"):
        FastKANClassifier(**SMALL).fit(X[["size"]], y, init_model=first)
    with pytest.raises(
        ConfigError, match=r"^hidden \(9,\): the model to start from has \(8,\), .* without that model$"
    ):
        FastKANClassifier(**{**SMALL, "hidden": 9}).fit(X, y, init_model=first)
    with pytest.raises(DataError, match="X: column 'mean_radius' is missing"):
        FastKANClassifier(**SMALL).fit(X, y, init_model=trained.model)
    two = pd.DataFrame({"arrival": y == "late", "other": y == "late"}).astype(int)
    with pytest.raises(DataError, match="has labels a, b; init_model was trained for arrival: train without it"):
        FastKANClassifier(**SMALL).fit(X, two.set_axis(["a", "b"], axis=1), init_model=first)
    added = FastKANClassifier(**STILL).fit(X, two, init_model=first)
    assert added.labels_ == ("arrival", "other") and len(to_table(X, list(X)))


def test_classes_mean_what_they_meant(first: FastKANClassifier) -> None:
    X, y = rows(seed=1)
    with pytest.raises(DataError, match=r"counts 'punctual' of label .* as 1, and init_model counts 'on time'"):
        FastKANClassifier(**STILL).fit(X, y.replace("on time", "punctual"), init_model=first)


def test_an_additive_model_keeps_its_shape_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    X, y = rows()
    X = X.assign(weight=X["size"] ** 2)
    settings: dict[str, Any] = {"model": "additive", "epochs": 1, "members": 2, "random_state": 0}
    first = FastKANClassifier(**settings, monotone=("size:+",), pairs="1").fit(X, y)
    FastKANClassifier(**settings, monotone=("size:+",), pairs="1").fit(X, y, init_model=first)
    assert "no effect" not in caplog.text
    FastKANClassifier(**settings, monotone=("weight:-",), pairs="0").fit(X, y, init_model=first)
    assert "monotone weight:- has no effect: the model to start from keeps its own, size:+" in caplog.text
    assert "pairs 0 has no effect: the model to start from keeps its 1" in caplog.text
    with pytest.raises(DataError, match=r"^X: .* init_model is additive, and cannot be extended; train without it$"):
        FastKANClassifier(**settings).fit(X.assign(height=X["weight"] * 2), y, init_model=first)


def test_labels_may_be_in_another_order_or_fewer() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=400), "z": rng.normal(size=400)})
    y = pd.DataFrame({"a": X["x"] > 0, "b": X["z"] > 0}).astype(int)
    first = FastKANClassifier(**SMALL, blend=False).fit(X, y)
    expected = first.decision_function(X)
    for names in (["b", "a"], ["b"]):
        again = FastKANClassifier(**STILL).fit(X, y[names].squeeze(axis=1), init_model=first)
        found = np.asarray(again.decision_function(X)).reshape(len(X), -1)
        for place, name in enumerate(names):
            assert np.array_equal(found[:, place].argsort(), expected[:, ["a", "b"].index(name)].argsort())
