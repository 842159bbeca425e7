"""Early stopping: which evaluation is the best so far, and when patience is used up."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


class EarlyStopping:
    """Remembers the best validation AP, and how many evaluations ago that was.

    Of evaluations with the same AP, as when few rows are all ranked correctly, the one with the lowest loss is the
    best.

    >>> early_stopping = EarlyStopping(patience=2)
    >>> scores = (0.5, 0.9), (0.7, 0.8), (0.6, 0.5), (0.7, 0.8)
    >>> [early_stopping.take(*score) for score in scores], early_stopping.exhausted
    ([True, True, False, False], True)
    >>> early_stopping.take(0.7, 0.6), early_stopping.exhausted
    (True, False)
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._best = self._best_due = (-math.inf, -math.inf)
        self.without_gain = 0

    @property
    def best(self) -> float:
        """The best AP."""
        return self._best[0]

    def take(self, average_precision: float, loss: float, *, is_due: bool = True) -> bool:
        """Count an evaluation; return whether it is the best so far."""
        score = average_precision, -loss
        better = score > self._best
        self._best = max(self._best, score)
        if is_due:
            self.without_gain = 0 if score > self._best_due else self.without_gain + 1
            self._best_due = max(self._best_due, score)
        return better

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Count the evaluations of an earlier process; an AP of 0 stands for one that was not finite."""
        for entry in history:
            loss = entry.get("validation_loss", math.inf)
            self.take(entry["average_precision"] or -math.inf, loss, is_due=entry.get("due", True))

    @property
    def exhausted(self) -> bool:
        """Whether patience is used up."""
        return self.without_gain >= self.patience
