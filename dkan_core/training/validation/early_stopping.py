"""Which evaluation of a run is the best, when to stop looking, and what is said about the best."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.config import TrainConfig
from dkan_core.data.encoding.histograms import count_up_to, quantile_knots
from dkan_core.evaluation.metrics import best_f1_threshold, compute_metrics
from dkan_core.model.calibration import Calibration, fit_calibration
from dkan_core.model.model_folder import SCORES
from dkan_core.scoring.prepared import ScoredSplit
from dkan_core.scoring.probabilities import to_probability
from dkan_core.training.state.refit_choices import CALIBRATION


class EarlyStopping:
    """Remembers the best validation AP, and how many evaluations ago that was.

    Of evaluations with the same AP, as where few rows are all ranked correctly, that with the lowest loss is the best.

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
        """Take in an evaluation; True when it is the best so far."""
        score = average_precision, -loss
        better = score > self._best
        self._best = max(self._best, score)
        if is_due:
            self.without_gain = 0 if score > self._best_due else self.without_gain + 1
            self._best_due = max(self._best_due, score)
        return better

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Take in the evaluations of an earlier process; an AP of 0 stands for one that was not finite."""
        for entry in history:
            loss = entry.get("validation_loss", math.inf)
            self.take(entry["average_precision"] or -math.inf, loss, is_due=entry.get("due", True))

    @property
    def exhausted(self) -> bool:
        """Whether patience is used up."""
        return self.without_gain >= self.patience


def describe_best(
    scored: ScoredSplit, names: Sequence[str], config: TrainConfig, *, epoch: float, step: float
) -> tuple[Calibration, dict[str, Any]]:
    """Calibrate a model on validation; return the calibration and what a model folder says about its model.

    That is the metrics on validation, of the probabilities that were calibrated there, each label's threshold by F1,
    and how its probabilities are distributed. Where a label has one class alone, the calibration still undoes what the
    weight of positives did to the odds.
    """
    # What the weight of positives adds to the log-odds that are learned. It is taken off before the fit, so that it is
    # gone also where a label has one class alone, and there is nothing to fit.
    prior = math.log(config.pos_weight)
    labels_NL = scored.labels_NL
    scale_L, shift_L = fit_calibration(labels_NL, scored.log_odds_NL - prior, scored.weight_N)
    shift_L = shift_L - scale_L * prior
    probabilities_NL = to_probability(scored.log_odds_NL * scale_L + shift_L)
    metrics = describe_probabilities(labels_NL, probabilities_NL, names, scored.weight_N)
    for name, *pair in zip(names, scale_L.tolist(), shift_L.tolist(), strict=True):
        metrics["labels"][name] |= zip(CALIBRATION, pair, strict=True)
    # Named by the digest of its weights, which a model keeps wherever it is copied.
    provenance = {} if config.init_from is None else {"init_from": config.init_from}
    return (scale_L, shift_L), {**metrics, "split": "valid", "epoch": epoch, "step": step, **provenance}


def describe_probabilities(
    labels_NL: npt.NDArray[np.uint8],
    probabilities_NL: npt.NDArray[np.float32],
    names: Sequence[str],
    weight_N: npt.NDArray[np.float32] | None,
) -> dict[str, Any]:
    """Return metrics of probabilities, each label's threshold by F1, and how its probabilities are distributed.

    Args:
        labels_NL: 0, 1, or 255 for not measured.
        probabilities_NL: What a model gives.
        names: The labels.
        weight_N: Weights of the rows, if any.

    Shape:
        - Input: ``(N, L)``, ``(N, L)``, ``(N,)``
    """
    metrics = compute_metrics(labels_NL, probabilities_NL, names, weight_N)
    for index, name in enumerate(names):
        threshold = best_f1_threshold(labels_NL[:, index], probabilities_NL[:, index], weight_N)
        metrics["labels"][name]["threshold"] = threshold
        metrics["labels"][name][SCORES] = score_distribution(probabilities_NL[:, index])
    return metrics


def score_distribution(scores_N: npt.NDArray[np.float32]) -> dict[str, list[Any]]:
    """Return bins of probabilities, by the ``knots`` between them, and the ``rows`` in each.

    Knots lie halfway between two scores, or between the highest one and 1: rounding, as on another device, then moves
    no row into another bin.
    """
    knots = np.array(quantile_knots(scores_N))
    scores_U = np.unique(scores_N)
    above = np.append(scores_U, 1.0)[np.searchsorted(scores_U, knots, side="right")]
    halfway = ((knots + above) / 2).tolist()
    return {"knots": halfway, "rows": count_up_to(scores_N, halfway).tolist()}
