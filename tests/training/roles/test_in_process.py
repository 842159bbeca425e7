"""Training in one process: rare positives, and weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

from dkan_core import FastKANClassifier
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.roles import in_process
from dkan_core.training.setup.defaults import resolve_for

ROWS, RATE = 60_000, 0.001


def rare(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One row in a thousand is positive, most of them where two numbers are high."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 4))
    log_odds = 2.5 * X[:, 0] + 1.5 * X[:, 1]
    shift = np.log(RATE) - np.log(np.mean(np.exp(log_odds.clip(None, 5))))
    return X, rng.random(ROWS) < 1 / (1 + np.exp(-(log_odds + shift)))


@pytest.mark.parametrize("pos_weight", [1.0, 100.0])
def test_one_positive_in_a_thousand_is_learned_and_its_probability_means_what_it_says(pos_weight: float) -> None:
    X, y = rare(0)
    unseen, truth = rare(1)
    model = FastKANClassifier(members=1, hidden=(16,), epochs=3, pos_weight=pos_weight, random_state=0, n_jobs=1)
    probability = model.fit(X, y).predict_proba(unseen)[:, 1]
    assert average_precision_score(truth, probability) > 40 * truth.mean()
    assert 0.6 * truth.mean() < probability.mean() < 1.7 * truth.mean()


def test_labels_drawn_at_random_are_not_predicted_from_columns_of_many_codes() -> None:
    """Choosing values and crosses by the labels must not carry them over to other rows."""
    rng = np.random.default_rng(0)
    names = [f"column {index}" for index in range(3)]
    X = pd.DataFrame({name: rng.integers(0, 60, 6000).astype(str) for name in names})
    X["number"] = rng.integers(0, 40, len(X))
    y = rng.random(len(X)) < 0.2
    model = FastKANClassifier(members=1, hidden=(16,), epochs=3, random_state=0, n_jobs=1).fit(X[:3000], y[:3000])
    # Four standard deviations of the AP of a random order of so many rows.
    assert average_precision_score(y[3000:], model.predict_proba(X[3000:])[:, 1]) < y[3000:].mean() + 0.03


def test_the_scale_of_the_weights_does_not_matter() -> None:
    X, y = rare(2)
    X, y = X[:2000, :2], X[:2000, 0] + X[:2000, 1] > 1
    settings: dict[str, Any] = {"members": 1, "hidden": (8,), "epochs": 2, "random_state": 0, "n_jobs": 1}
    plain, *weighted = (
        FastKANClassifier(**settings).fit(X, y, sample_weight=weight).predict_proba(X)
        for weight in (None, np.full(len(X), 1e-6), np.full(len(X), 1e4))
    )
    for probability in weighted:
        np.testing.assert_allclose(probability, plain, atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "single", "device": "cuda:0"},
        {"strategy": "parameter-server", "ema_decay": 0.9},
        {"strategy": "local-sgd", "sync_interval": 8},
        {"mode": "average", "sync_interval": 8},
        {"mode": "async", "sync_interval": 8},
    ],
)
def test_one_process_trains_alike_whatever_the_strategy(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, whose place the CPU takes here, the optimizer steps where the model is."""
    X, y = rare(3)
    X, y = X[:2000], X[:2000, 0] + X[:2000, 1] > 1
    same = {name: value for name, value in changes.items() if name == "ema_decay"}

    def probability(**changes: Any) -> np.ndarray:
        def changed(*arguments: Any, **keywords: Any) -> ResolvedTrainConfig:
            return replace(resolve_for(*arguments, **keywords), clip_norm=None, **changes)

        monkeypatch.setattr("dkan_core.integrations.sklearn.training.resolve_for", changed)
        model = FastKANClassifier(members=1, hidden=(8,), epochs=2, device="cpu", random_state=0, n_jobs=1)
        return model.fit(X, y).predict_proba(X)[:, 1]

    monkeypatch.setattr(in_process, "Replica", lambda model, _, kernel: Replica(model, torch.device("cpu"), kernel))
    np.testing.assert_array_equal(probability(**changes), probability(**same))
