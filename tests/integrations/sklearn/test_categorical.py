"""``categorical_features``: columns of whole numbers that are the same columns as text."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix

from dkan_core import FastKANClassifier

ROWS = 400
SETTINGS: dict[str, Any] = {
    "hidden": (8,),
    "members": 1,
    "epochs": 1,
    "architecture_search": False,
    "blend": False,
    "random_state": 0,
    "n_jobs": 1,
}


def make_rows() -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Users, of whom some are missing, which makes them floats; and as many of them once as not."""
    rng = np.random.default_rng(0)
    user = pd.Series(np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(0, 400, ROWS)))
    return pd.DataFrame({"x": rng.normal(size=ROWS), "user": user}), rng.integers(0, 2, ROWS)


def as_text(X: pd.DataFrame) -> pd.DataFrame:
    return X.assign(user=X["user"].astype("Int64").astype("string"))


@pytest.mark.parametrize(
    ("chosen", "to_rows"),
    [
        (["user"], lambda X: X),
        ([1], lambda X: X.to_numpy()),
        (np.array([False, True]), lambda X: X.astype({"user": "Int64"})),
        (["user"], lambda X: pa.table({"x": X["x"], "user": pa.array(X["user"].astype("Int64"))})),
    ],
)
def test_whole_numbers_are_what_their_texts_are(
    chosen: Any, to_rows: Callable[[pd.DataFrame], Any], tmp_path: Path
) -> None:
    X, y = make_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are stored as text
        wanted = FastKANClassifier(**SETTINGS).fit(as_text(X), y).predict_proba(as_text(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FastKANClassifier(categorical_features=chosen, **SETTINGS).fit(to_rows(X), y)
        assert np.array_equal(model.predict_proba(to_rows(X)), wanted)
        model.save(tmp_path / "model")
        loaded = FastKANClassifier.load(tmp_path / "model")
        assert np.array_equal(loaded.predict_proba(to_rows(X)), wanted)
        half = to_rows(X.iloc[:300])
        model = FastKANClassifier(categorical_features=chosen, **SETTINGS)
        assert model.fit(half, y[:300], eval_set=(to_rows(X.iloc[300:]), y[300:])).preprocessor_.categories
    model.partial_fit(half, y[:300])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["usr"], "X has no column 'usr'; did you mean 'user'"),
        ([2], "X has no column 2; "),
        ([-1], "X has no column -1; "),
        ([True], "a mask of 1 columns; X has 2"),
        (["x"], "column 'x' holds numbers with a fraction; expected whole numbers, strings or booleans"),
    ],
)
def test_columns_that_are_not_there_or_no_codes_are_named(chosen: Any, message: str) -> None:
    X, y = make_rows()
    with pytest.raises(ValueError, match=f"categorical_features: {message}"):
        FastKANClassifier(categorical_features=chosen, **SETTINGS).fit(X, y)


def test_a_sparse_matrix_of_ones_has_none() -> None:
    X, y = make_rows()
    with pytest.raises(ValueError, match="categorical_features: a sparse X of zeros and ones has none"):
        FastKANClassifier(categorical_features=[0], **SETTINGS).fit(csr_matrix(X[["x"]] > 0).astype(float), y)
