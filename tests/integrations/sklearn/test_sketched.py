"""``FastKANClassifier(sketch_rank=...)``: fewer numbers to learn, on disk and where training goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import ConfigError, FastKANClassifier
from dkan_core.model.sketch import sketched_layers

SMALL: dict[str, Any] = {
    **{"members": 1, "hidden": (16,), "blend": False, "epochs": 4},
    **{"random_state": 0, "n_jobs": 1, "device": "cpu"},
}


def rows(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(count, 40))
    return X, X[:, :4].sum(axis=1) > 0


def test_sketched_classifier_learns_with_fewer_numbers_and_keeps_its_rank(tmp_path: Path) -> None:
    X, y = rows()
    full = FastKANClassifier(**SMALL).fit(X, y)
    model = FastKANClassifier(**SMALL, sketch_rank=8).fit(X, y)
    numbers = [sum(each.numel() for each in one.module_.parameters()) for one in (full, model)]
    # 40 columns in 9 functions and 16 units: two sketches instead of two tables.
    assert numbers[0] - numbers[1] == 40 * 9 * 16 - 8 * (40 * 9 + 2 * 16)
    assert model.score(X, y) > 0.7
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    assert loaded.sketch_rank == 8 and np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.partial_fit(X, y)
    assert loaded.architecture_.sketch_rank == 8 and len(sketched_layers(loaded.module_)) > 0
    assert loaded.architecture_.sketch_seed == model.architecture_.sketch_seed


def test_a_rank_that_saves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sketch_rank 16: the sketched first layer would have .* set at most 14"):
        FastKANClassifier(**SMALL, sketch_rank=16).fit(*rows())
