"""A ``FastKANClassifier`` that is saved and loaded scores the same rows the same, and a damaged one is named."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

from dkan_core import ConfigError, DataError, FastKANClassifier, OutputError, TrainResult, predict
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.setup import placement
from tests.integrations.sklearn.test_estimator import frame, several, small


def test_saved_model_scores_the_same_rows_the_same(tmp_path: Path) -> None:
    X, y = frame()
    model = small(random_state=np.random.RandomState(0)).fit(X, y)
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(loaded.predict_proba(X), expected)
    assert loaded.get_params() == {**model.get_params(), "random_state": None}
    assert (loaded.history_, loaded.n_iter_, loaded.validation_average_precision_) == (
        model.history_,
        model.n_iter_,
        model.validation_average_precision_,
    )
    X.to_parquet(tmp_path / "rows.parquet")
    predict(tmp_path / "model", tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")["arrival_probability"].to_numpy()
    np.testing.assert_array_equal(scores, expected[:, 1])
    assert 0 < SavedModel(tmp_path / "model").thresholds["arrival"] < 1


def test_several_labels_are_saved_with_their_names(tmp_path: Path) -> None:
    X, y = several()
    model = small().fit(X, pd.DataFrame(y, columns=["first", "second", "third"]))
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert SavedModel(tmp_path / "model").config.labels == ("first", "second", "third")


def test_save_replaces_only_a_model_and_only_when_told_to(tmp_path: Path) -> None:
    X, y = frame(200)
    model = small().fit(X, y)
    model.save(tmp_path / "model")
    with pytest.raises(OutputError, match="already holds an earlier result"):
        model.save(tmp_path / "model")
    model.save(tmp_path / "model", overwrite=True)
    with pytest.raises(OutputError, match="which this command did not write"):
        model.save(tmp_path, overwrite=True)
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(OutputError, match=r"config\.json: was not written by dkan"):
        model.save(tmp_path / "model", overwrite=True)


def test_any_model_folder_is_loaded(
    trained: TrainResult, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ``dkan train`` wrote, by its run's path; what cannot be known has the value that is documented."""
    predict(trained.model, source, tmp_path / "scores.parquet")
    expected = pq.read_table(tmp_path / "scores.parquet")["label_probability"].to_numpy()
    rows = pq.read_table(source)
    loaded = FastKANClassifier.load(Path(trained.model).parent)
    assert loaded.classes_.tolist() == [0, 1] and loaded.labels_ == ("label",)
    assert loaded.thresholds_ == SavedModel(Path(trained.model)).thresholds
    assert loaded.feature_names_in_.tolist() == [name for name in rows.column_names if name != "label"]
    assert loaded.validation_average_precision_ == trained.average_precision
    assert loaded.history_ == [] and 1 <= loaded.n_iter_ <= 8
    assert (loaded.hidden, loaded.learning_rate) == ((8,), None)
    for table in (rows, rows.to_pandas(), rows.select(rows.column_names[::-1])):
        np.testing.assert_allclose(loaded.predict_proba(table)[:, 1], expected, rtol=1e-5)
    array = rows.drop_columns("label").to_pandas().to_numpy(dtype=object)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_allclose(loaded.predict_proba(array)[:, 1], expected, rtol=1e-5)
    monkeypatch.setattr(placement, "visible_gpus", lambda: 0)
    for device, message in (("cuda", "no GPU is visible to torch; choose device cpu"), ("gpu", "device must be auto")):
        with pytest.raises(ConfigError, match=message):
            loaded.set_params(device=device).predict(rows)
    loaded.set_params(device="cpu")
    # As shap's KernelExplainer does with its copy, so that scikit-learn does not warn.
    copied = copy.deepcopy(loaded)
    copied.feature_names_in_ = None  # type: ignore[assignment]
    np.testing.assert_allclose(copied.predict_proba(array)[:, 1], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"yet now missing:\n- mean_area"):
        loaded.predict(rows.drop_columns("mean_area").to_pandas())
    loaded.save("memory://estimator/model")
    again = FastKANClassifier.load("memory://estimator/model")
    np.testing.assert_array_equal(again.predict_proba(rows), loaded.predict_proba(rows))
    X, y = frame_of(rows)
    assert clone(loaded).set_params(epochs=1, n_jobs=1).fit(X, y).n_features_in_ == len(X.columns)


def frame_of(rows: pa.Table) -> tuple[pd.DataFrame, pd.Series]:
    X = rows.to_pandas()
    return X.drop(columns="label"), X["label"]


def check_saved_to(uri: str, folder: Path) -> None:
    X, y = frame(200)
    model = small(epochs=1).fit(X, y)
    model.save(uri)
    loaded = FastKANClassifier.load(uri)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.classes_.tolist() == model.classes_.tolist() and loaded.history_ == model.history_
    with pytest.raises(OutputError, match="already holds an earlier result"):
        model.save(uri)
    model.fit(X[::-1], y[::-1]).save(uri, overwrite=True)
    np.testing.assert_array_equal(FastKANClassifier.load(uri).predict_proba(X), model.predict_proba(X))
    assert not list(folder.iterdir())


def test_model_is_saved_to_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_saved_to("memory://estimator/saved", tmp_path)


@pytest.mark.s3
def test_model_is_saved_to_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_saved_to(f"{s3}/model", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": "late"}, r"estimator\.json: classes: Input should be a valid array, got 'late'"),
        ({"parameters": {"hiden": 8}}, r"estimator\.json: parameters: 'hiden' is none of FastKANClassifier"),
        ({"class_dtype": "<i8"}, r"estimator\.json: class_dtype: does not fit classes"),
        ({"class_dtype": "<U500000000"}, r"estimator\.json: class_dtype: does not fit classes \(takes more"),
        ({"classes": [0, 300], "class_dtype": "|i1"}, r"estimator\.json: class_dtype: does not fit classes"),
        ({"more": 1}, r"estimator\.json: more: Extra inputs are not permitted"),
    ],
)
def test_damaged_folder_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    X, y = frame(200)
    small(epochs=1).fit(X, y).save(tmp_path / "model")
    path = tmp_path / "model" / "estimator.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=r"estimator\.json: is damaged or was changed"):
        FastKANClassifier.load(tmp_path / "model")
    (tmp_path / "model" / "files.json").unlink()
    with pytest.raises(DataError, match=message):
        FastKANClassifier.load(tmp_path / "model")
