"""``FastKANClassifier`` behaves as scikit-learn's own classifiers do, on frames and arrays in memory."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dkan_core import ConfigError, FastKANClassifier, evaluate
from dkan_core.model.base import TabularModel

ROWS = 600


def small(**settings: Any) -> FastKANClassifier:
    defaults = {"hidden": (8,), "epochs": 4, "batch_size": 64, "learning_rate": 0.02, "random_state": 0, "n_jobs": 1}
    return FastKANClassifier(**{**defaults, "device": "cpu", **settings})


def frame(rows: int = ROWS, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Return rows with numbers, categories, strings, booleans and missing values, and a label that needs them."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["north", "south", "west"], rows)
    X = pd.DataFrame(
        {
            "size": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "count": rng.integers(0, 5, rows),
            "site": pd.Categorical(site),
            "note": np.where(rng.random(rows) < 0.2, np.array(None), rng.choice(["a", "b"], rows)),
            "flag": rng.random(rows) < 0.5,
            "constant": 1.5,
        }
    )
    chance = (site == "north") * 2.0 + X["size"].fillna(0) + X["flag"]
    return X, pd.Series(np.where(chance > 1, "late", "on time"), name="arrival")


def several(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(rows, 4))
    y = np.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0, X[:, 3] > 1.5], axis=1).astype(np.float64)
    y[::3, 1] = np.nan
    return X, y


WEIGHTS_ARE_NO_COPIES = (
    "a row of weight 2 stands in one batch of a step, two copies of it in two; and rows, not weights, are held out"
)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [FastKANClassifier(n_jobs=1)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS_ARE_NO_COPIES,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS_ARE_NO_COPIES,
    },
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks(estimator: FastKANClassifier, check: Any) -> None:
    check(estimator)


def test_frame_with_categories_and_missing_values_is_learned() -> None:
    X, y = frame()
    fresh, truth = frame(seed=1)
    model = small(epochs=20).fit(X, y)
    assert model.classes_.tolist() == ["late", "on time"] and model.feature_names_in_.tolist() == list(X)
    assert average_precision_score(truth == "on time", model.predict_proba(fresh)[:, 1]) > 0.9
    # Probabilities are float32: next to 1, what is left of it is known to 6e-8.
    np.testing.assert_allclose(np.exp(model.predict_log_proba(fresh)), model.predict_proba(fresh), rtol=1e-4, atol=1e-7)
    assert model.score(fresh, truth) > 0.85 and set(model.predict(fresh)) == {"late", "on time"}
    assert model.validation_average_precision_ == max(entry["average_precision"] for entry in model.history_)
    assert model.n_iter_ == len(model.history_)


@pytest.mark.parametrize("kind", ["arrow", "objects"])
def test_tables_of_other_kinds_give_the_same_model(kind: str) -> None:
    X, y = frame()
    other = pa.Table.from_pandas(X) if kind == "arrow" else X.to_numpy(dtype=object)
    expected = small().fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(small().fit(other, y).predict_proba(other), expected)


@pytest.mark.parametrize("classes", [(False, True), (-1, 1), ("no", "yes"), (2.0, 3.0)])
def test_classes_may_be_anything_that_has_an_order(classes: tuple[Any, Any], tmp_path: Path) -> None:
    X, y = frame(200)
    y = np.where(y == "late", *classes)
    model = small().fit(X, y)
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    assert model.classes_.tolist() == loaded.classes_.tolist() == list(classes)
    assert model.classes_.dtype == loaded.classes_.dtype == y.dtype


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_classes_of_many_digits_are_told_apart(dtype: type, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=300)})
    y: Any = np.where(X["x"] > 0, 20240102, 20240101).astype(dtype)
    FastKANClassifier(epochs=3, random_state=0).fit(X, y).save(tmp_path / "model")
    X.assign(label=y).to_parquet(tmp_path / "rows.parquet")
    found = evaluate(tmp_path / "model", tmp_path / "rows.parquet", tmp_path / "eval", explain=False)
    assert found.metrics["roc_auc"] > 0.9 and found.metrics["prevalence"] == (X["x"] > 0).mean()


@pytest.mark.parametrize(
    ("weight", "of_class", "message"),
    [
        (1e38, 1.0, r"Sample weights must be at most 1e\+30, got 1e\+38"),
        (1e-46, 1.0, "Sample weights are too small for a 32-bit float in 1 row; multiply all by the same number"),
        (1e20, 1e20, r"Sample weights times class weights must be at most 1e\+30, got 1e\+40"),
        (1e-30, 1e-30, "Sample weights times class weights are too small for a 32-bit float in 1 row"),
        (1.0, 1e35, r"class_weight must be numbers above 0 and at most 1e\+30, got \{0: 1, 1: 1e\+35\}"),
    ],
)
def test_weights_that_no_step_could_take_are_refused(weight: float, of_class: float, message: str) -> None:
    X, y = np.arange(40.0)[:, None], np.arange(40) % 2
    with pytest.raises(ValueError, match=message):
        FastKANClassifier(class_weight={0: 1, 1: of_class}).fit(X, y, sample_weight=[*[1.0] * 39, weight])


def test_columns_that_say_nothing_are_left_out_with_a_warning() -> None:
    X, y = frame(200)
    expected = small().fit(X, y).predict_proba(X)
    X = X.assign(empty=None, nan=np.nan, number=[f"row {index}" for index in range(len(X))])
    with pytest.warns(UserWarning, match=r"columns \['empty', 'nan', 'number'\] of X hold no value, or none that rep"):
        model = small().fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    with pytest.raises(ValueError, match=r"No column of X says anything .*'number'"):
        small().fit(X[["empty", "number"]], y)


def test_several_labels_may_be_unmeasured() -> None:
    X, y = several()
    model = small(epochs=15).fit(X, y)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == y.shape and model.predict(X).tolist() == (probabilities > 0.5).astype(int).tolist()
    for index in range(y.shape[1]):
        measured = ~np.isnan(y[:, index])
        assert average_precision_score(y[measured, index], probabilities[measured, index]) > 0.9
    assert np.array_equal(model.decision_function(X) > 0, probabilities > 0.5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probabilities, rtol=1e-5)


def test_unmeasured_labels_change_nothing() -> None:
    X, y = several()
    y[:, 2] = np.nan
    with pytest.warns(UserWarning, match=r"y: label 'label_2' has no value in \d+ rows: its predictions mean nothing"):
        extended = small().fit(X, y)
    assert extended.predict_proba(X).shape == y.shape
    assert set(extended.metrics_["labels"]) == {"label_0", "label_1", "label_2"}


def test_rows_of_weight_zero_count_as_left_out() -> None:
    X, y = frame()
    # Of another seed than the frame: all of its sites are to be among the rows of weight 1.
    weight = np.random.default_rng(1).integers(0, 2, len(X))
    left_out = small().fit(X[weight > 0], y[weight > 0], sample_weight=np.ones(weight.sum()))
    np.testing.assert_array_equal(small().fit(X, y, sample_weight=weight).predict_proba(X), left_out.predict_proba(X))


def test_weights_draw_probabilities_as_copies_of_rows_do() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 1))
    y = rng.random(1000) < 1 / (1 + np.exp(1 - 2 * X[:, 0]))
    times = np.where(y, 4, 1)
    rows = np.repeat(np.arange(len(X)), times)
    model = small(epochs=8, learning_rate=0.05)
    plain, weighted, copied = (
        model.fit(X[chosen], y[chosen], sample_weight=weight).decision_function(X).mean()
        for chosen, weight in ((slice(None), None), (slice(None), times), (rows, None))
    )
    assert weighted - plain == pytest.approx(np.log(4), abs=0.4)
    assert copied - plain == pytest.approx(np.log(4), abs=0.4)


def test_each_class_is_a_label() -> None:
    X, _ = frame()
    classes = pd.get_dummies(X["count"], prefix="count")
    model = small(epochs=10).fit(X[["count", "size"]], classes)
    assert model.labels_ == tuple(classes)
    assert (model.predict_proba(X[["count", "size"]]).argmax(axis=1) == X["count"]).mean() > 0.95


def test_quality_is_that_of_the_settings() -> None:
    X, y = frame(200)
    fast, default = (
        FastKANClassifier(quality=quality, epochs=1, random_state=0, n_jobs=1).fit(X, y).architecture_
        for quality in ("fast", None)
    )
    assert (fast.members, fast.hidden) == (default.members // 2, (default.hidden[0] // 2,))


def test_eval_set_is_what_decides_the_best() -> None:
    X, y = frame()
    held_out = frame(200, seed=1)
    model = small(patience=1, epochs=50).fit(X, y, eval_set=held_out)
    found = average_precision_score(held_out[1] == "on time", model.predict_proba(held_out[0])[:, 1])
    assert model.validation_average_precision_ == pytest.approx(found)
    assert model.n_iter_ < 50
    with pytest.raises(ValueError, match=r"y of eval_set holds 'early'; the classes are \['late', 'on time'\]"):
        small().fit(X, y, eval_set=(X, y.replace("late", "early")))
    with pytest.raises(ValueError, match=r"eval_set \(5 rows\): one class only"):
        small().fit(X, y, eval_set=(X[y == "late"][:5], y[y == "late"][:5]))


def test_works_with_scikit_learns_tools() -> None:
    X, y = frame(300)
    assert cross_val_score(small(), X, y == "late", cv=2, scoring="average_precision").mean() > 0.6
    search = GridSearchCV(small(), {"hidden": [(4,), (8,)], "dropout": np.array([0.0, 0.2])}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"hidden", "dropout"}
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["site"]),
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size", "count"]),
    ).set_output(transform="pandas")
    pipeline = make_pipeline(columns, small()).fit(X, y)
    assert pipeline.score(X, y) > 0.6 and "onehotencoder__site_north" in pipeline[-1].feature_names_in_


def test_pickles_may_be_older_than_a_parameter() -> None:
    model = FastKANClassifier(epochs=3)
    state = {name: value for name, value in vars(model).items() if name != "architecture_search"}
    older = FastKANClassifier.__new__(FastKANClassifier)
    older.__setstate__(state)
    assert older.get_params() == model.get_params()


def test_estimator_is_cloned_and_pickled() -> None:
    X, y = frame(200)
    model = small(hidden=[8, 4]).fit(X, y)
    copied = clone(model)
    assert copied.get_params() == model.get_params() and not hasattr(copied, "classes_")
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(copied.fit(X, y).predict_proba(X), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)


def test_pickles_have_the_model_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction leaves it on the GPU, and the process that reads the pickle may have none."""
    model = small(epochs=1).fit(*frame(200))
    moved: list[TabularModel] = []

    def cpu(module: TabularModel) -> TabularModel:
        moved.append(module)
        return module

    monkeypatch.setattr(TabularModel, "cpu", cpu)
    pickle.dumps(model)
    (copied,) = moved
    assert copied is not model.module_, "another thread may predict meanwhile"


def test_random_state_decides_everything() -> None:
    X, y = frame(200)
    first, same, other = (small(random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 0


def test_wrong_input_is_named() -> None:
    X, y = frame(200)
    model = small().fit(X, y)
    with pytest.raises(ValueError, match=r"Feature names seen at fit time, yet now missing:\n- size"):
        model.predict(X.drop(columns="size"))
    with pytest.raises(ValueError, match=r"feature names should match"):
        model.predict(X[list(X)[::-1]])
    with pytest.raises(ValueError, match=r"X: column 'size' is string; the model was trained with numbers there"):
        model.predict(X.assign(size="large"))
    with pytest.raises(ValueError, match=r"X: column 'raw' is binary; a feature is a number, string, boolean, date"):
        small().fit(X.assign(raw=b"raw"), y)
    with pytest.raises(TypeError, match=r"argument must be a string or a number"):
        small().fit(X.assign(mixed=["a", 1] * 100), y)
    with pytest.raises(ValueError, match=r"each must be 0, 1 or NaN .*; y holds 2"):
        small().fit(X, np.full((200, 2), 2))
    with pytest.raises(
        ValueError, match=r"target is multiclass\. Give fit one column of 0 and 1 per class, .*get_dummies"
    ):
        small().fit(X, np.arange(200) % 3)
    with pytest.raises(ValueError, match=r"y where sample_weight is above 0 \(\d+ rows\): one class only"):
        small().fit(X, y, sample_weight=y == "late")
    with pytest.raises(ConfigError, match=r"quality must be .*got 'good'"):
        small(quality="good").fit(X, y)
    with pytest.raises(ConfigError, match=r"dropout must be from 0 to 0\.99, got 2"):
        small(dropout=2.0).fit(X, y)
    with pytest.raises(
        ValueError, match=r"validation rows held out \(10 rows\): one class only; .*give fit an eval_set"
    ):
        small().fit(X[:100], np.arange(100) == 0)


def test_row_hardly_depends_on_its_neighbours() -> None:
    X, y = frame()
    model = small(hidden=16).fit(X, y)
    order = np.random.default_rng(0).permutation(ROWS)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(X.iloc[order]), probabilities[order], rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X[7:8]), probabilities[7:8], rtol=1e-5)
