"""A fit that fails or is interrupted leaves the classifier as it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.exceptions import NotFittedError

from dkan_core import ConfigError, FastKANClassifier, evaluate
from dkan_core.integrations.sklearn import training
from tests.integrations.sklearn.test_estimator import frame, several, small


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_classifier_keeps_what_it_was_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = several()
    model = small(blend=False).fit(X, y[:, 0])
    before = model.predict_proba(X)
    with pytest.raises(ConfigError, match="dropout"):
        model.set_params(dropout=2.0).fit(X * 100 + 50, np.where(y[:, 0] > 0, "yes", "no"))
    model.set_params(dropout=0.2)
    monkeypatch.setattr(training, "train_single", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2] * 100 + 50, y[:, 1] > 0)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X * 100 + 50, y[:, 0])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == 4


def test_classifier_that_was_never_fitted_says_so() -> None:
    X, y = several()
    for fit in (FastKANClassifier.fit, FastKANClassifier.partial_fit):
        model = small(dropout=2.0)
        with pytest.raises(ConfigError, match="dropout"):
            fit(model, X, y)
        with pytest.raises(NotFittedError):
            model.predict(X)
        assert not hasattr(model, "classes_")


def test_saved_classifier_is_evaluated_on_its_own_classes(tmp_path: Path) -> None:
    X, y = frame()
    model = small().fit(X, y)
    model.save(tmp_path / "model")
    pq.write_table(pa.Table.from_pandas(X.assign(arrival=y)), tmp_path / "rows.parquet")
    found = evaluate(tmp_path / "model", tmp_path / "rows.parquet", tmp_path / "eval", explain=False)
    on_time = model.predict_proba(X)[:, 1]
    pairs = on_time[y == "on time"].to_numpy()[:, None] if isinstance(on_time, pd.Series) else on_time[y == "on time"]
    expected = np.mean(pairs[:, None] > on_time[y == "late"][None])
    assert found.metrics["roc_auc"] == pytest.approx(expected, abs=1e-3)
