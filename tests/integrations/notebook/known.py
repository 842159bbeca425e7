"""Rows of which it is known what decides the label, and settings for a run of seconds."""

import numpy as np

from dkan_core import TrainConfig

CONFIG = TrainConfig(epochs=4, hidden=(8,), batch_size=64, device="cpu", learning_rate=0.02)


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows on scales of their own, with missing values that say something about the label."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(count, 4)) * [1, 1000, 0.001, 1] + [0, 500, 0, -3]).astype(np.float32)
    y = (x[:, 0] + (x[:, 1] / 1000 - 0.5) ** 2 > 1).astype(np.int64)
    x[(rng.random(count) < 0.3) & (y == 1), 3] = np.nan
    return x, y


TRAIN, TEST = rows(800), rows(200, seed=1)
