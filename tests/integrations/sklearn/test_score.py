"""``score``, which searches maximize by default, where labels are not measured."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, KFold

from tests.integrations.sklearn.test_estimator import ROWS, frame, several, small


def test_score_of_several_labels_leaves_out_what_is_not_measured() -> None:
    X, y = several()
    model = small().fit(X, y)
    found, measured = model.predict(X), ~np.isnan(y)
    wanted = ((found == y) | ~measured).all(axis=1)
    assert model.score(X, y) == wanted.mean()
    y[:300] = np.nan
    assert model.score(X, y) == pytest.approx(wanted[300:].mean())
    weights = np.arange(ROWS)
    assert model.score(X, y, weights) == pytest.approx(np.average(wanted[300:], weights=weights[300:]))
    with pytest.raises(ValueError, match="y: no label of a row with a weight above 0"):
        model.score(X, np.full_like(y, np.nan))
    search = GridSearchCV(small(), {"epochs": [1, 2]}, cv=KFold(2), error_score="raise").fit(X, several()[1])
    assert 0 < search.best_score_ < 1


def test_classes_may_be_truth_values_as_objects() -> None:
    X, y = frame(200)
    late = pd.Series(y == "late").astype(object)
    model = small().fit(X, late)
    assert model.score(X, late) == (model.predict(X) == late.astype(bool)).mean()
