"""Which evaluation of a run is the best, when to stop looking, and what is said about the best."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.metrics import best_f1_threshold, compute_metrics


class Selection:
    """Remembers the best validation AP, and how many evaluations ago that was.

    >>> selection = Selection(patience=2)
    >>> [selection.take(value) for value in (0.5, 0.7, 0.6, 0.7)], selection.exhausted
    ([True, True, False, False], True)
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best, self.without_gain = -math.inf, 0

    def take(self, value: float) -> bool:
        """Take in an evaluation; True when it is the best so far."""
        better = value > self.best
        self.without_gain = 0 if better else self.without_gain + 1
        self.best = value if better else self.best
        return better

    @property
    def exhausted(self) -> bool:
        """Whether patience is used up."""
        return self.without_gain >= self.patience


def validation_metrics(
    labels_NL: npt.NDArray[np.uint8],
    probabilities_NL: npt.NDArray[np.float32],
    names: Sequence[str],
    *,
    epoch: float,
    step: float,
) -> dict[str, Any]:
    """Return what a model folder says about its model: metrics on validation, and each label's threshold by F1."""
    metrics = compute_metrics(labels_NL, probabilities_NL, names)
    for index, name in enumerate(names):
        threshold = best_f1_threshold(labels_NL[:, index], probabilities_NL[:, index])
        metrics["labels"][name]["threshold"] = threshold
    return {**metrics, "split": "valid", "epoch": epoch, "step": step}
