"""Values in rows to score that the rows of ``fit`` did not have."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from dkan_core import FastKANClassifier


def test_values_that_the_model_does_not_know_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=400), "paid": rng.random(400) < 0.5})
    model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(X, X["size"] > 0)
    assert model.score(X, X["size"] > 0) > 0.5, "warnings are errors here"
    for score_rows in (model.predict, model.predict_proba, lambda X: model.score(X, X["size"] > 0)):
        with pytest.warns(UserWarning, match=r"^X: column 'paid': 400 of 400 rows .* model does not know") as caught:
            score_rows(X.assign(paid="perhaps"))
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="400 of 400 rows"):
        exec("predict(X)", {"predict": model.predict, "X": X.assign(paid="perhaps")})  # code without a module


def test_truth_values_are_known_however_they_are_written() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=400), "paid": rng.random(400) < 0.5})
    texts = X.astype({"paid": str})
    for train, score in ((X, texts), (texts, X), (texts, texts.assign(paid=texts["paid"].str.upper()))):
        model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(train, X["paid"])
        assert np.array_equal(model.predict_proba(score), model.predict_proba(train)), "warnings are errors here"


def test_single_rows_of_few_ids_are_as_expected() -> None:
    ones = np.random.default_rng(0).random((400, 20)) < np.linspace(0.02, 0.9, 400)[:, None]
    X = csr_matrix(ones.astype(int))
    model = FastKANClassifier(hidden=(4,), epochs=1, random_state=0, n_jobs=1).fit(X, ones[:, 0])
    assert model.predict(X[:1]).shape == (1,), "warnings are errors here"
    with pytest.warns(UserWarning, match="X: column 'columns': rows have 0 IDs that the model knows, on average"):
        model.predict(csr_matrix((400, 20), dtype=int))
