"""What ``FastKANClassifier`` tells of itself, and class weights and thresholds, as scikit-learn's users expect them."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier

from dkan_core import ConfigError, DataError, FastKANClassifier
from tests.integrations.sklearn.test_estimator import frame, several, small


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take importances from a quarter of the rows."""
    monkeypatch.setattr("dkan_core.integrations.sklearn.contributions.IMPORTANCE_ROWS", 64)


@pytest.mark.parametrize("given", [True, False], ids=["eval_set", "held out"])
def test_class_weight_is_a_weight_of_the_rows(given: bool) -> None:
    X, y = frame()
    few = np.flatnonzero((y != "on time") | (np.arange(len(y)) % 4 == 0))
    X, y = X.iloc[few], y.iloc[few]
    eval_set = (X, y) if given else None
    plain, balanced = (small(class_weight=each).fit(X, y, eval_set=eval_set) for each in (None, "balanced"))
    share = float((y == "on time").mean())
    weights = {name: len(y) / (2 * count) for name, count in y.value_counts().items()}
    assert share < 0.35 and abs(plain.predict_proba(X)[:, 1].mean() - share) < 0.08
    # Both classes are as frequent, by weight.
    assert abs(np.average(balanced.predict_proba(X)[:, 1], weights=y.map(weights)) - 0.5) < 0.08
    if not given:
        by_dict = small(class_weight=weights).fit(X, y)
        by_row = small().fit(X, y, sample_weight=y.map(weights))
        assert np.array_equal(by_dict.predict_proba(X), balanced.predict_proba(X))
        assert np.array_equal(by_row.predict_proba(X), balanced.predict_proba(X))


def test_class_weight_is_refused_where_it_means_nothing() -> None:
    X, y = several()
    with pytest.raises(ValueError, match="class_weight is for one label; with several, set label_weights"):
        small(class_weight="balanced").fit(X, y)
    with pytest.raises(ValueError, match="class_weight"):
        small(class_weight="even").fit(*frame())
    for weight in (0, -1, np.nan):
        with pytest.raises(
            ValueError, match=r"class_weight must be numbers above 0 and at most 1e\+30, got \{'late': 1"
        ):
            small(class_weight={"late": 1, "on time": weight}).fit(*frame())


def test_feature_importances_are_shares_and_choose_columns(tmp_path: Path) -> None:
    X, y = frame()
    with pytest.warns(UserWarning, match="left out"):
        model = small(epochs=12).fit(X.assign(empty=np.nan), y)
    importances = model.feature_importances_
    found = dict(zip([*X, "empty"], importances, strict=True))
    assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= 0 and found["empty"] == 0
    assert min(found["size"], found["site"], found["flag"]) > 2 * max(found["count"], found["note"])
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model").feature_importances_
    np.testing.assert_allclose(loaded, importances, rtol=1e-5)
    chosen = SelectFromModel(model, prefit=True, max_features=3, threshold=-np.inf).get_support()
    assert {*np.array([*X, "empty"])[chosen]} == {"size", "site", "flag"}
    assert not hasattr(small(), "feature_importances_")
    # Computing them takes a second, and a notebook reads them each time that it shows a model.
    assert model.feature_importances_ is importances


def test_a_time_counts_by_all_of_its_parts() -> None:
    rng = np.random.default_rng(0)
    hours = pd.to_timedelta(rng.integers(0, 24 * 300, 2000), unit="h")
    X = pd.DataFrame({"noise": rng.normal(size=2000), "bought": pd.Timestamp("2024-01-01") + hours})
    model = small(model="additive", hidden=None, epochs=8).fit(X, X["bought"].dt.hour >= 12)
    parts = model.explain(X).abs().mean()
    assert parts["bought.hour"] > 5 * parts["noise"]
    assert model.feature_importances_[1] > 0.8
    edited = model.edit([{"term": "bought.hour", "action": "remove"}])
    before = edited.feature_importances_
    assert before[1] < model.feature_importances_[1]
    assert edited.fit(X, X["noise"] > 0).feature_importances_[1] < before[1]


def test_importances_of_several_labels_are_their_mean() -> None:
    found = small(epochs=8).fit(*several()).feature_importances_
    assert found.shape == (4,) and found.sum() == pytest.approx(1) and found.min() > 0.05


@pytest.mark.parametrize("labels", [1, 3])
def test_contributions_have_the_index_of_the_frame(labels: int) -> None:
    X, y = several()
    model = small(epochs=1).fit(X, np.nan_to_num(y[:, :labels]).squeeze())
    rows = X[::50]
    index = pd.Index(["b", "a", *["c"] * (len(rows) - 2)], name="customer")
    with pytest.warns(UserWarning, match="fitted without feature names"):
        found = model.explain(pd.DataFrame(rows, index, [*"abcd"]))
    assert found.index.equals(index) and np.array_equal(found, model.explain(rows))


def test_plot_is_a_page_of_importances_and_curves(tmp_path: Path) -> None:
    X, y = frame()
    model = small().fit(X, y)
    page = model.plot(X, y)
    assert "What the model learned" in page.html and "<svg" in page.html
    assert page._repr_html_().startswith("<iframe") and len(repr(page)) < 80
    (learned,) = page.explanation.labels.values()
    assert [curve.name for curve in learned.curves] == [each.name for each in learned.importance]
    model.plot(X).save(tmp_path / "learned.html")
    assert "site" in (tmp_path / "learned.html").read_text()
    with pytest.raises(DataError, match="X: has 1 row; explaining takes two or more"):
        model.plot(X[:1])
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[600, 3\]"):
        model.plot(X, y[:3])
    with pytest.raises(ValueError, match="y has 3 labels; expected 1"):
        model.plot(X, several()[1])


def test_verbose_prints_a_line_for_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = frame()
    model = small(epochs=3, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(model.history_) == 3
    assert re.fullmatch(r"epoch 1\.00  loss 0\.\d{4}  AP 0\.\d{4}  best 0\.\d{4}", lines[0])
    small(epochs=1).fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("threshold", [0.2, 0.8])
def test_threshold_is_that_of_scikit_learns_meta_estimator(threshold: float) -> None:
    X, y = frame()
    model = small(epochs=1).fit(X, y)
    fixed = FixedThresholdClassifier(
        FrozenEstimator(model), threshold=threshold, response_method="predict_proba", pos_label="on time"
    ).fit(X, y)
    assert np.array_equal(fixed.predict(X) == "on time", model.predict_proba(X)[:, 1] >= threshold)
    assert np.array_equal(model.set_params(threshold=threshold).predict(X), fixed.predict(X))


def test_best_threshold_is_the_one_of_the_report_for_each_label(tmp_path: Path) -> None:
    X, y = several()
    model = small(epochs=1, threshold="best").fit(X, y)
    found, best = model.predict(X), np.array([model.thresholds_[label] for label in model.labels_], np.float32)
    assert np.array_equal(found, model.predict_proba(X) >= best)
    assert not np.array_equal(found, small(epochs=1).fit(X, y).predict(X))
    model.save(tmp_path / "model")
    assert np.array_equal(FastKANClassifier.load(tmp_path / "model").predict(X), found)


@pytest.mark.parametrize("threshold", [0, 1.0, -0.1, float("nan"), "F1", None])
def test_threshold_that_is_none_is_refused(threshold: object) -> None:
    with pytest.raises(ConfigError, match=f"threshold must be 'best' or a number between 0 and 1, got {threshold!r}"):
        small(threshold=threshold).fit(*frame())


def test_column_may_be_called_as_the_baseline() -> None:
    X, y = frame(200)
    X = X.assign(baseline=np.arange(200.0))
    found = small().fit(X, y).explain(X)
    assert found.columns.is_unique and [*found.columns][-1] == "(baseline)" and "baseline" in found


def test_arrays_may_have_the_bytes_of_other_machines() -> None:
    X, y = np.random.default_rng(0).normal(size=(200, 2)), np.arange(200) % 2
    model = small().fit(X.astype(">f8"), y)
    np.testing.assert_array_equal(model.predict_proba(X.astype(">f8")), model.predict_proba(X))
