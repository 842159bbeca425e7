"""Ranges of an edit at the ends of a column, and of columns that have two values."""

import logging
from pathlib import Path

import numpy as np
import pandas
import pytest

from dkan_core import ConfigError, FastKANClassifier, edit
from dkan_core.integrations.model_registry.registering import describe_model
from dkan_core.model.saved_model import SavedModel, are_current


@pytest.fixture(scope="module")
def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    return pandas.DataFrame({"tail": rng.exponential(2.0, 4000), "flag": rng.integers(0, 2, 4000) * 1.0})


@pytest.fixture(scope="module")
def found(frame: pandas.DataFrame) -> FastKANClassifier:
    label_N = frame["tail"] + frame["flag"] + np.random.default_rng(1).normal(size=len(frame)) > 3
    return FastKANClassifier(model="additive", pairs="0", members=2, epochs=1, random_state=0).fit(frame, label_N)


def changed(found: FastKANClassifier, frame: pandas.DataFrame, **edit: object) -> pandas.Series:
    """Return which rows an edit changes."""
    before, after = (each.explain(frame)[edit["term"]] for each in (found, found.edit([{"action": "set", **edit}])))
    # Means go to the intercept: the rows that stay have all moved by one number.
    moved = after - before
    return (moved - moved.median()).abs() > 1e-3


def test_outliers_are_a_part_of_the_last_values(
    found: FastKANClassifier, frame: pandas.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    knots = found.preprocessor_.numeric[0].knots
    assert frame["tail"].max() > knots[-1], "there are outliers"
    rows = changed(found, frame, term="tail", start=knots[-1] + 0.01, to=30)
    assert rows[frame["tail"] >= knots[-1]].all() and not rows[frame["tail"] < knots[-2]].any()
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "changes all values from" in told and " on: start or stop lies inside a code" in told
    caplog.clear()
    # A range to the end of what is known goes on to the outliers, and there is nothing to say.
    whole = found.edit([{"term": "tail", "action": "set", "start": 0, "stop": knots[-1] * 2, "to": 30}])
    assert not caplog.records and np.ptp(whole.explain(frame)["tail"]) < 1e-5


def test_outliers_of_a_heavy_tail_are_found(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"tail": rng.pareto(1.0, 4000)})
    found = FastKANClassifier(model="additive", pairs="0", members=2, epochs=1, random_state=0)
    found.fit(frame, rng.integers(0, 2, 4000))
    top = frame["tail"].max()
    assert top > 3 * found.preprocessor_.numeric[0].knots[-1], "it is far beyond the known values"
    assert changed(found, frame, term="tail", start=top, to=30)[frame["tail"].idxmax()]
    assert "changes all values from" in caplog.text


@pytest.mark.parametrize(("ends", "value"), [({"start": 0.5}, 1.0), ({"stop": 0.5}, 0.0), ({"start": 1}, 1.0)])
def test_of_two_values_those_in_the_range_change(
    found: FastKANClassifier, frame: pandas.DataFrame, ends: dict[str, float], value: float
) -> None:
    edited = found.edit([{"term": "flag", "action": "set", "to": 3.0, **ends}])
    before, after = (each.explain(frame)["flag"].groupby(frame["flag"]).first() for each in (found, edited))
    shift = after[1 - value] - before[1 - value]
    level = after[value] - shift
    assert level == pytest.approx(3.0, abs=1e-5)
    with pytest.raises(ConfigError, match="the column has the values 0 and 1, none there"):
        found.edit([{"term": "flag", "action": "set", "start": 0.2, "stop": 0.8, "to": 1}])
    with pytest.raises(ConfigError, match="start 20240131 is above stop 20240101"):
        found.edit([{"term": "flag", "action": "set", "start": 20240131, "stop": 20240101, "to": 1}])


def test_log_odds_that_would_cost_other_terms_their_digits_are_refused(found: FastKANClassifier) -> None:
    found.edit([{"term": "flag", "action": "set", "start": 1, "to": 1000}])
    large = found.edit([{"term": "flag", "action": "set", "start": 1, "to": 999}])
    large.edit([{"term": "tail", "action": "remove"}, {"term": "flag", "action": "scale", "factor": 1.0}])
    with pytest.raises(ConfigError, match="to 1001 makes log-odds exceed the limit of 1000"):
        found.edit([{"term": "flag", "action": "set", "start": 1, "to": 1001}])


def test_scores_from_before_an_edit_are_no_reference_of_drift(found: FastKANClassifier, tmp_path: Path) -> None:
    found.save(tmp_path / "model")
    (before,) = SavedModel(tmp_path / "model").metrics["labels"].values()
    edit(tmp_path / "model", [{"term": "flag", "action": "remove"}], tmp_path / "edited")
    (after,) = SavedModel(tmp_path / "edited").metrics["labels"].values()
    assert {*before} - {*after} == {"scores"}
    with pytest.raises(ConfigError, match="split test needs data"):
        edit(tmp_path / "model", [{"term": "flag", "action": "remove"}], tmp_path / "no", split="test")


def test_figures_from_before_an_edit_are_not_passed_on(found: FastKANClassifier, tmp_path: Path) -> None:
    found.save(tmp_path / "model")
    edit(tmp_path / "model", [{"term": "flag", "action": "remove"}], tmp_path / "edited")
    for name, expected in (("model", True), ("edited", False)):
        metrics = SavedModel(tmp_path / name).metrics
        assert are_current(metrics) is expected
        described = describe_model(tmp_path / name, name="m", version="1", metrics={}, run=None)
        assert ("valid_average_precision" in described.properties) is expected
