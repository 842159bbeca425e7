"""Columns of one value are in no pair."""

import numpy as np
import pandas

from dkan_core import FastKANClassifier


def test_a_pair_has_two_columns_that_vary() -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(1000, 4)), columns=["a", "b", "c", "d"]).assign(one=1.0, same="x")
    found = FastKANClassifier(model="additive", pairs="40", members=2, epochs=1, random_state=0)
    found.fit(frame, frame["a"] * frame["b"] > 0)
    pairs = [name for name in found.explain(frame[:2]).columns if " x " in name]
    assert len(pairs) == 6 and not any("one" in name or "same" in name for name in pairs)
