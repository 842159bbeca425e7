"""Rows as a caller of the classifier has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import load_breast_cancer

from dkan_core import ConfigError, FastKANClassifier
from dkan_core.data.encoding import sparse as encoding
from dkan_core.data.source.frames import to_table
from dkan_core.integrations.sklearn import rows
from dkan_core.integrations.sklearn.targets import encode_labels, find_classes


def test_row_without_a_category_is_scored() -> None:
    """A frame of one row has no type for a column that is None there."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=400), "promo": rng.choice(["a", "b"], 400)})
    model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(X, X["x"] > 0)
    none, nan = (model.predict_proba(X.head(1).assign(promo=nothing)) for nothing in (None, np.nan))
    assert np.array_equal(none, nan) and none.shape == (1, 2)
    with pytest.raises(TypeError, match="X: column 'promo' mixes types: each argument must be a string or a number"):
        model.predict_proba(X.head(2).assign(promo=["a", 1]))


def test_batch_of_arrow_has_names() -> None:
    X = pa.record_batch({"x": np.arange(40.0), "z": np.arange(40.0)[::-1]})
    model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(X, np.arange(40) > 20)
    assert model.feature_names_in_.tolist() == ["x", "z"] and model.predict(X).shape == (40,)
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(X.select(["z", "x"]))


def test_model_of_a_sparse_matrix_takes_no_array() -> None:
    ones = np.random.default_rng(0).integers(0, 2, (40, 3))
    model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(csr_matrix(ones), ones[:, 0])
    for call in (model.predict, lambda X: model.partial_fit(X, ones[:, 0])):
        with pytest.raises(ValueError, match=r"X is dense, and that of fit was sparse; give scipy\.sparse\.csr_matrix"):
            call(ones)


def test_additive_model_of_ids_says_what_its_caller_can_do() -> None:
    ones = np.random.default_rng(0).integers(0, 2, (40, 3))
    model = FastKANClassifier(model="additive", epochs=1, random_state=0, n_jobs=1)
    with pytest.raises(ConfigError, match=r"a sparse X .* no curve; choose model='auto', or give X\.toarray\(\)$"):
        model.fit(csr_matrix(ones), ones[:, 0])
    assert model.fit(csr_matrix(ones).toarray(), ones[:, 0]).n_features_in_ == 3
    lists = pa.table({"x": np.arange(40.0), "tags": [np.flatnonzero(row).tolist() for row in ones]})
    with pytest.raises(ConfigError, match=r"column 'tags' of X .*; choose model='auto', or leave it out of X$"):
        model.fit(lists, ones[:, 0])


def test_sparse_matrix_of_other_numbers_is_read_as_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ``ColumnTransformer`` makes of scaled numbers and of one-hot encoded categories."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((200, 5)) < 0.8, 0, rng.normal(size=(200, 5)))
    y = X[:, 0] + X[:, 1] > 0
    settings: dict[str, Any] = {"hidden": (4,), "epochs": 2, "random_state": 0, "n_jobs": 1}
    wanted = FastKANClassifier(**settings).fit(X, y, eval_set=(X[:50], y[:50])).predict_proba(X)
    model = FastKANClassifier(**settings).fit(csr_matrix(X), y, eval_set=(csr_matrix(X[:50]), y[:50]))
    assert np.array_equal(model.predict_proba(csr_matrix(X)), wanted)
    # Of these rows every value is 0, as of ids.
    assert np.array_equal(model.predict_proba(csr_matrix(np.zeros_like(X))), model.predict_proba(np.zeros_like(X)))
    monkeypatch.setattr(rows, "MAX_DENSE_CELLS", 999)
    message = r"A sparse X of 200 x 5 .* of at most 999 cells; "
    with pytest.raises(ValueError, match=f"{message}give fewer rows$"):
        model.predict(csr_matrix(X))
    with pytest.raises(ValueError, match=f"{message}leave out columns, or give X != 0 to train on zeros and ones$"):
        model.fit(csr_matrix(X), y)
    assert model.fit(csr_matrix(X) != 0, y).predict(csr_matrix(X) != 0).shape == (200,)


def test_frame_without_columns_or_rows_is_refused() -> None:
    for X, message in (
        (pd.DataFrame(index=range(4)), r"0 feature\(s\) \(shape=\(4, 0\)\)"),
        (pd.DataFrame({"x": []}), r"0 sample\(s\) \(shape=\(0, 1\)\)"),
    ):
        with pytest.raises(ValueError, match=message):
            FastKANClassifier().fit(X, np.arange(len(X)) % 2)


def test_column_that_cannot_be_read_is_named() -> None:
    names = ["x", "u"]
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    with pytest.raises(TypeError, match=r"X: column 'u' holds intervals, .*\.astype\(str\)"):
        to_table(frame.assign(u=pd.cut(frame["x"], 2)), names)
    with pytest.raises(TypeError, match=r"X: column 'u' is sparse; .*\.sparse\.to_dense\(\)"):
        to_table(frame.assign(u=pd.arrays.SparseArray([0.0, 1.0])), names)
    for large in ([2**70, 1], [[2**63], [1]], [np.array([2**63], np.uint64), np.array([1], np.uint64)]):
        with pytest.raises(TypeError, match=r"X: column 'u' holds integers that do not fit .*, and take IDs modulo"):
            to_table(frame.assign(u=large), names)
    for values, what in (([1, "a"], "mixes types"), ([object()] * 2, "holds other objects")):
        with pytest.raises(TypeError, match=f"X: column 'u' {what}: each argument must be a string or a number"):
            to_table(np.array([[1, value] for value in values], dtype=object), names)


def test_columns_of_the_same_name_are_named() -> None:
    X = pd.DataFrame(np.random.default_rng(0).random((40, 4)), columns=["a", "b", "a", "b"])
    message = "X has several columns called 'a', 'b'; give each a name of its own"
    with pytest.raises(ValueError, match=message):
        FastKANClassifier().fit(X, np.arange(40) % 2)
    model = FastKANClassifier(epochs=1, device="cpu").fit(X.iloc[:, :2], np.arange(40) % 2)
    with pytest.raises(ValueError, match=message):
        model.predict(X)


def test_frame_that_is_not_in_memory_is_refused() -> None:
    lazy = type("LazyFrame", (), {"columns": ["x"], "collect": None})()
    with pytest.raises(TypeError, match=r"X is a LazyFrame; give a frame .*collect\(\)"):
        FastKANClassifier().fit(lazy, [0, 1])


def test_numbers_stored_as_text_are_named() -> None:
    x = np.random.default_rng(0).integers(0, 400, 200) / 4
    X = np.column_stack([x.astype(str), np.where(x > 50, "a", "b")])
    with pytest.warns(UserWarning, match=r"X: numbers stored as text become .*: 'x0'; convert") as caught:
        FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(X, x > 50)
    assert caught[0].filename == __file__


def test_categories_of_polars_are_text() -> None:
    codes = pa.array([1, None, 0], pa.uint32())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"], pa.string_view()))
    assert to_table(pa.table({"c": column}), ["c"])["c"].to_pylist() == ["b", None, "a"]


@dataclass
class Exported:
    """A frame as polars gives it to Arrow, which does not know one of its types."""

    columns: tuple[str, ...]
    dtypes: tuple[str, ...]

    def select(self, names: list[str]) -> "Exported":
        return Exported(tuple(names), tuple(self.dtypes[self.columns.index(name)] for name in names))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if "Int128" in self.dtypes:
            raise pa.ArrowInvalid("Invalid or unsupported format string: '_pli128'")
        return pa.table({name: [1, 2] for name in self.columns}).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(("kind", "message"), [("Int128", "cannot be read .*_pli128"), ("Object", "holds objects")])
def test_column_of_polars_that_arrow_cannot_take_is_named(kind: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"X: column 'key' {message}"):
        to_table(Exported(("x", "key"), ("Int64", kind)), ["x", "key"])
    assert to_table(Exported(("x",), ("Int64",)), ["x"])["x"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([["a"]] * 40, pa.list_(pa.string_view())), "is list<.*; a feature is a number, .*;"),
        (pa.array(range(2**60, 2**60 + 40)), "has 36 different values, which are only 1 as 64-bit floats; .*, or"),
        (pa.array([[*range(6)]] * 40), "has 6 IDs in a row; expected at most 5: shorten its lists, or"),
    ],
)
def test_column_that_cannot_be_a_feature_is_named_with_what_its_caller_can_do(
    column: pa.Array, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MAX_ROW_IDS", 5)
    X = pa.table({"x": np.arange(40.0), "tags": column})
    with pytest.raises(ValueError, match=f"X: column 'tags' {problem} leave it out of X$"):
        FastKANClassifier().fit(X, np.arange(40) % 2)


def test_sparse_matrix_with_too_many_ones_in_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_IDS", 5)
    # A column that is named twice holds one 1.
    X = csr_matrix((np.ones(7, np.uint8), [0, 1, 2, 3, 4, 5, 5], [0, 7]), (1, 9)).tocsr()
    message = r"A sparse X of zeros and ones may have 5 ones in a row, got 6; leave out columns, .* or give X\.toarray"
    with pytest.raises(ValueError, match=message):
        FastKANClassifier().fit(X, [0])


def test_labels_may_have_no_name_and_be_sparse() -> None:
    assert find_classes(pd.Series([0, 1], name=""))[1] == ["label"]
    assert find_classes(pd.DataFrame([[0, 1], [1, 0]], columns=["late", ""]))[1] == ["late", "label_1"]
    sparse = csr_matrix([[0, 1], [1, 0], [1, 1]])
    classes, names = find_classes(sparse)
    assert names == ["label_0", "label_1"]
    assert np.array_equal(encode_labels(sparse, classes, names), sparse.toarray())
    classes, names = find_classes(sparse[:, 1:])
    assert names == ["label"] and np.array_equal(encode_labels(csr_matrix([[0], [1]]), np.arange(2), names), [[0], [1]])


def test_labels_have_the_names_of_a_frames_columns() -> None:
    assert find_classes(pd.DataFrame({"late": [0, 1]}))[1] == ["late"]
    assert find_classes(pa.table({"late": [0, 1], "early": [1, 0]}))[1] == ["late", "early"]


@pytest.mark.parametrize("values", [[False, True], [0, 1], [0.0, 1.0]])
def test_classes_may_be_objects(values: list[Any]) -> None:
    """As pandas has booleans and integers where some were missing."""
    y = np.array([*values, values[1]], dtype=object)
    classes, _ = find_classes(y)
    assert classes.dtype == np.array(values).dtype and classes.tolist() == values
    assert encode_labels(y, classes, ["label"]).ravel().tolist() == [0, 1, 1]


@pytest.mark.parametrize("y", [["late", None, "early"], [0, 1, np.nan], pd.Series([1, pd.NA, 0], dtype="Int64")])
def test_row_without_a_class_is_refused(y: Any) -> None:
    y = pd.Series(y)
    with pytest.raises(ValueError, match="Input y contains NaN or None: 1 row of 3 without a class; leave them out"):
        find_classes(y)
    with pytest.raises(ValueError, match="Input y of eval_set contains NaN or None: 1 row of 3"):
        encode_labels(y, y.dropna().unique(), ["label"], "y of eval_set")


def test_labels_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="y must hold values of one type"):
        find_classes(pd.Series(["late", 1]))
    with pytest.raises(ValueError, match=r"y holds 'never'; the classes are \['early', 'late'\]"):
        encode_labels(np.array(["never"]), np.array(["early", "late"]), ["label"])
    for shape, labels in (((4,), 2), ((4, 2), 1), ((4, 3), 2)):
        with pytest.raises(ValueError, match=f"y has {(*shape, 1)[1]} labels?; expected {labels}"):
            encode_labels(np.zeros(shape), np.arange(2), ["up", "down"][:labels])
    with pytest.raises(ValueError, match=r"classes must be two, got \[0, 1, 2\]"):
        FastKANClassifier().partial_fit([[1.0], [2.0]], [0, 1], classes=[0, 1, 2])


def test_several_labels_are_told_apart_by_their_names() -> None:
    given = pd.DataFrame({"down": [0.0, 1.0], "up": [1.0, np.nan]})
    names, classes = ["up", "down"], np.arange(2)
    for y in (given, pa.Table.from_pandas(given), given[names], given[names].to_numpy()):
        assert encode_labels(y, classes, names).tolist() == [[1, 0], [255, 1]]
    assert encode_labels(given[names].to_numpy(), classes, ["label_1", "label_0"]).tolist() == [[1, 0], [255, 1]]
    renamed = given.rename(columns={"up": "left"})
    with pytest.raises(ValueError, match="y of eval_set has the labels down, left; expected up, down"):
        encode_labels(renamed, classes, names, "y of eval_set")


def test_eval_set_may_be_a_list_of_one_pair() -> None:
    """As LightGBM and XGBoost take it."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :5]
    settings: dict[str, Any] = {"hidden": (4,), "epochs": 1, "random_state": 0, "n_jobs": 1}
    pair = (X[:100], y[:100])
    first, second = (FastKANClassifier(**settings).fit(X[100:], y[100:], eval_set=given) for given in (pair, [pair]))
    assert first.validation_average_precision_ == second.validation_average_precision_
    wrong: Any
    for wrong in ([pair, pair], [], (X, y, y), [X]):
        with pytest.raises(ValueError, match="eval_set must be one pair"):
            FastKANClassifier(**settings).fit(X, y, eval_set=wrong)


def test_validation_score_is_that_of_other_groups() -> None:
    """The group says the label, and nothing else does."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(40), 10)
    X, y = pd.DataFrame({"patient": [f"p{number}" for number in patients]}), rng.permutation(40)[patients] < 20
    model = FastKANClassifier(hidden=(8,), epochs=20, batch_size=32, blend=False, random_state=0, n_jobs=1)
    assert model.fit(X, y).validation_average_precision_ > 0.9
    for fit in (model.fit, FastKANClassifier(hidden=(8,), random_state=0, n_jobs=1).partial_fit):
        assert fit(X, y, groups=patients).validation_average_precision_ < 0.8


def test_groups_go_with_an_eval_set_that_has_none() -> None:
    X = np.random.default_rng(0).integers(0, 5, (200, 2)).astype(float)
    y, groups = X[:, 0] > 2, pd.Series(np.arange(200) // 4)
    model = FastKANClassifier(hidden=(4,), epochs=2, refit=True, random_state=0, n_jobs=1)
    assert model.fit(X, y, eval_set=(X[:50], y[:50]), groups=groups).predict(X).shape == (200,)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1, 2, 3], r"groups must hold one value for each of 40 rows, got shape \(3,\)"),
        (np.zeros((40, 2)), r"got shape \(40, 2\)"),
        (["a", None] * 20, "groups contains NaN or None in 20 rows; leave them out, or give each a group of its own"),
        ([np.nan, *range(39)], "groups contains NaN or None in 1 row"),
        (np.array([1, "a"] * 20, dtype=object), "groups must hold values of one type"),
        (["a"] * 40, r"validation rows held out \(0 rows\): one class only; .* give fit an eval_set"),
    ],
)
def test_wrong_groups_are_named(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FastKANClassifier().fit(np.arange(40.0)[:, None], np.arange(40) % 2, groups=groups)


@pytest.mark.parametrize("where", ["value", "name"])
def test_text_that_is_no_unicode_is_refused(where: str) -> None:
    # As objects: from pandas 3 on, its own strings hold none of this.
    X = pd.DataFrame({"a": ["\ud800"]}, dtype=object)
    if where == "name":
        X = X.set_axis(pd.Index(["\ud800"], dtype=object), axis=1)
    with pytest.raises(ValueError, match="X: text that is no valid Unicode"):
        to_table(X, list(X.columns))
