"""Training in one process: rare positives, weights of positives and labels."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from dkan_core import ConfigError, FastKANClassifier, TrainConfig
from dkan_core.data.encoding import Preprocessor
from dkan_core.data.manifest import PreparedData, SplitInfo
from dkan_core.model.tabular import ModelConfig

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


def test_label_weights_must_fit_the_labels() -> None:
    prepared = PreparedData(
        preprocessor=Preprocessor(numeric=[], coded=[], numeric_dtype="uint8"),
        labels=["a", "b"],
        weight=None,
        splits={"train": SplitInfo(rows=1, classes={}, shards=[])},
        split_rule={},
        seed=0,
        invalid={},
        sources=[],
    )
    with pytest.raises(ConfigError, match=r"label_weights: 3 given; the labels are \['a', 'b'\]"):
        ModelConfig.for_data(prepared, TrainConfig(label_weights=(1, 1, 1), members=1, hidden=(4,)))
