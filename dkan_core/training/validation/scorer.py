"""Scores parameters on the validation split and tells which are the best.

Shape suffixes: V parameters side by side (the second are the moving average), P trainable parameters of the model.
"""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dkan_core.data.loading.loader import RowReader
from dkan_core.evaluation.metrics import macro_average_precision, mean_log_loss
from dkan_core.scoring.prepared import ScoredSplit, score_split
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.state.ledger import TrainingFigures
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.training.validation.early_stopping import EarlyStopping
from dkan_core.utils.arrays import Float32

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BestParameters:
    """Parameters ``(P,)`` that were better than all before, their scores, and the run's progress."""

    values_P: Float32
    scored: ScoredSplit
    figures: TrainingFigures


class _Score(NamedTuple):
    """How good parameters are on the validation split, and its rows' scores."""

    average_precision: float
    loss: float
    scored: ScoredSplit


class ValidationScorer:
    """Scores parameters and remembers the best value.

    Args:
        replica: The model, whose parameters are replaced.
        reader: The validation split.
        patience: Of early stopping.
        choices: Choices of the first training, if this is a refit.
    """

    def __init__(self, replica: Replica, reader: RowReader, patience: int, choices: RefitChoices | None = None) -> None:
        self.replica = replica
        self.reader = reader
        self.early_stopping = EarlyStopping(patience)
        self.choices = choices

    def skips(self, *, final: bool) -> bool:
        """Return whether a state of the run, its final one or not, need not be scored."""
        # A refit trains on the validation rows, which can therefore choose nothing: its model is its last state.
        return self.early_stopping.exhausted or (self.choices is not None and not final)

    def score_parameters(
        self, values_VP: Float32, figures: TrainingFigures, *, is_due: bool = True
    ) -> tuple[dict[str, Any], BestParameters | None]:
        """Score parameters; return a line of history, and the best of them if they are better than all before.

        Args:
            values_VP: The parameters, and their moving average where there is one. In a refit, only the one that the
                first training has chosen is scored.
            figures: How far the run is.
            is_due: Whether the evaluation counts for patience.
        """
        if self.choices is not None:
            values_VP = self.choices.parameters(values_VP)
        scores = [self._score(values_P) for values_P in values_VP]
        # Of equal scores, the first: the parameters themselves rather than their average.
        winner = max(range(len(scores)), key=lambda index: (scores[index].average_precision, -scores[index].loss))
        best = scores[winner]
        better = self.early_stopping.take(best.average_precision, best.loss, is_due=is_due)
        named = {"average_precision": best.average_precision, "best_average_precision": self.early_stopping.best}
        if len(scores) > 1:
            raw, ema = scores
            named |= {"average_precision_raw": raw.average_precision, "average_precision_ema": ema.average_precision}
        entry = {**asdict(figures), **{name: max(0.0, value) for name, value in named.items()}, "best": better}
        if not is_due:
            entry["due"] = False
        if math.isfinite(best.loss):
            entry["validation_loss"] = best.loss
        return entry, BestParameters(values_VP[winner].copy(), best.scored, figures) if better else None

    def _score(self, values_P: Float32) -> _Score:
        self.replica.load(values_P)
        self.replica.model.eval()
        scored = score_split(self.replica.model, self.reader, self.replica.device)
        self.replica.model.train()
        if not np.isfinite(scored.log_odds_NL).all():
            # Not an error: parameters that diverge may recover, and the run refuses updates and backs off by itself.
            logger.warning("a score is not finite: these parameters cannot be the best")
            return _Score(-math.inf, math.inf, scored)
        arrays = scored.labels_NL, scored.log_odds_NL, scored.weight_N
        return _Score(macro_average_precision(*arrays), mean_log_loss(*arrays), scored)
