"""Tables of an additive model's terms: with the intercept, they are its log-odds."""

import numpy as np
import pandas as pd
import pytest

from dkan_core import FastKANClassifier
from dkan_core.explanation.scales import WEEKDAYS
from dkan_core.explanation.term_tables import TermBin, term_tables
from dkan_core.model import additive_shape
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import terms_of


def test_categories_without_a_number_of_their_own_are_rare_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A term tells so many categories apart at most, although the encoding has codes for more."""
    monkeypatch.setattr(additive_shape, "MAX_CATEGORIES", 8)
    rng = np.random.default_rng(0)
    kinds = np.minimum(rng.geometric(0.12, 3000), 30)
    X = pd.DataFrame({"kind": [f"k{kind}" for kind in kinds], "x": rng.normal(size=3000)})
    y = X["x"] + (kinds == 1) + rng.normal(size=3000) > 0
    model = FastKANClassifier(model="additive", pairs="0", random_state=0, n_jobs=1, device="cpu").fit(X, y)
    assert isinstance(model.module_, AdditiveFastKAN)
    tables = term_tables(terms_of(model.module_), model.preprocessor_, 0)
    table = next(table for table in tables if table.columns == ("kind",))
    effects = {level: value for each, value in zip(table.bins[0], table.log_odds, strict=True) for level in named(each)}
    assert {each.name for each in table.bins[0]} >= {"(rare)", "k1"} and len(table.bins[0]) == 8
    found = model.explain(X)["kind"]
    expected = [effects.get(kind, effects["(rare)"]) for kind in X["kind"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_bins_of_weekdays_are_weekdays() -> None:
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 200, 3000), "D")
    X = pd.DataFrame({"day": day, "x": rng.normal(size=3000)})
    y = X["x"] + (day.day_of_week >= 5) + rng.normal(size=3000) > 0.5
    model = FastKANClassifier(model="additive", pairs="0", random_state=0, n_jobs=1, device="cpu").fit(X, y)
    assert isinstance(model.module_, AdditiveFastKAN)
    tables = term_tables(terms_of(model.module_), model.preprocessor_, 0)
    table = next(table for table in tables if table.columns == ("day.weekday",))
    assert {each.name for each in table.bins[0]} == {"missing", *WEEKDAYS}
    effects = {each.name: value for each, value in zip(table.bins[0], table.log_odds, strict=True)}
    found = model.explain(X)["day.weekday"]
    np.testing.assert_allclose(found, [effects[WEEKDAYS[weekday]] for weekday in day.day_of_week], atol=1e-5)


def named(each: TermBin) -> list[str]:
    return each.levels or [each.name]
