"""Values that edits are about: as people write them."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest

from dkan_core import ConfigError, FastKANClassifier


def test_times_and_weekdays_are_written_as_such(caplog: pytest.LogCaptureFixture) -> None:
    hours = np.arange(9000)
    rng = np.random.default_rng(0)
    at = pandas.Series(pandas.Timestamp("2024-01-01", tz="Europe/Berlin") + pandas.to_timedelta(hours, "h"))
    found = FastKANClassifier(model="additive", pairs="0", members=2, epochs=1, random_state=0)
    found.fit(pandas.DataFrame({"at": at}), rng.integers(0, 2, len(at)))
    edited = found.edit(
        [
            {"term": "at", "action": "set", "start": "2024-03-01", "stop": pandas.Timestamp("2024-05-31T23"), "to": 30},
            {"term": "at.weekday", "action": "set", "values": ["Sat", "Sun"], "to": -9.0},
            {"term": "at.weekday", "action": "flatten", "start": "Mon", "stop": "Wed"},
        ]
    )
    (told,) = re.findall(r"changes all values from (\S+) \S+ to (\S+) ", caplog.text)
    assert "2024-02-27" <= told[0] <= "2024-03-01" and "2024-05-31" <= told[1] <= "2024-06-03"
    effect = edited.explain(pandas.DataFrame({"at": at}))
    spring = (at >= "2024-03-01") & (at < "2024-06-01")
    assert np.ptp(effect["at"][spring]) < 1e-5 and effect["at"][spring].min() > effect["at"][at.dt.month > 6].max() + 9
    weekday = effect["at.weekday"].groupby(at.dt.weekday).first()
    assert np.ptp(weekday[:3]) < 1e-5 and np.ptp(weekday[5:]) < 1e-5 and weekday[:5].min() > weekday[5:].max() + 8
    for wrong, message in (
        ({"start": "May"}, "start: 'May' is not a date or time; expected one such as 2024-05-31 or"),
        (
            {"start": "2024-06-01", "stop": "2024-05-01"},
            r"start 2024-06-01 00:00\+0200 is above stop 2024-05-01 23:59\+0200",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            found.edit([{"term": "at", "action": "set", "to": 1.0, **wrong}])
    with pytest.raises(ConfigError, match="'Samstag' is not a weekday; expected one of Mon, Tue"):
        found.edit([{"term": "at.weekday", "action": "set", "to": 1.0, "values": ["Samstag"]}])


def test_categories_of_integers_are_written_as_such(tmp_path: Path) -> None:
    shop = np.arange(900) % 30
    found = FastKANClassifier(
        model="additive", pairs="0", members=2, epochs=1, random_state=0, categorical_features=["shop"]
    )
    found.fit(pandas.DataFrame({"shop": shop}), np.random.default_rng(0).integers(0, 2, len(shop)))
    (tmp_path / "edits.toml").write_text('[[edit]]\nterm = "shop"\naction = "set"\nto = 9.0\nvalues = [17, "18"]\n')
    edits = {"term": "shop", "action": "set", "to": 9.0, "values": np.array([17, 18])}
    for edited in (found.edit([edits]), found.edit(tmp_path / "edits.toml")):
        assert edited.metrics_["edits"][0]["values"] == ["17", "18"]
        high = edited.predict_proba(pandas.DataFrame({"shop": shop}))[:, 1] > 0.99
        assert np.array_equal(high, (shop == 17) | (shop == 18))
    with pytest.raises(ConfigError, match="values"):
        found.edit([{**edits, "values": [True]}])


def test_the_edits_of_the_guide_work(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    departure = pandas.Timestamp("2013-01-01") + pandas.to_timedelta(rng.integers(0, 8760, 3000), "h")
    carrier = rng.choice(np.array(["UA", "HA", None], dtype=object), 3000)
    frame = pandas.DataFrame(
        {"departure": departure, "carrier": carrier, "distance": rng.integers(100, 4000, 3000) / 1}
    )
    frame["month"], frame["hour"] = departure.month / 1, departure.hour / 1
    found = FastKANClassifier(model="additive", pairs="8", members=2, epochs=1, random_state=0)
    found.fit(frame, (frame["month"] > 6) != (frame["hour"] > 11))
    text = (Path(__file__).parents[2] / "docs/guides/additive.md").read_text()
    (tmp_path / "edits.toml").write_text("".join(re.findall("```toml\n(.*?)```", text, re.DOTALL)))
    edited = found.edit(tmp_path / "edits.toml")
    assert [each["action"] for each in edited.metrics_["edits"]] == [
        "monotone",
        "flatten",
        "remove",
        "set",
        "set",
        "flatten",
    ]
    effect = edited.explain(frame)
    # No mean is left, so that what was set to 0 is equal alone.
    assert np.ptp(effect["carrier"][frame["carrier"] != "UA"]) < 1e-6
    assert np.ptp(effect["departure"][frame["departure"].between("2013-10-29", "2013-11-02 12:00")]) < 1e-6
