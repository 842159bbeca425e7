"""The metrics in a model's folder: on validation, with calibration, thresholds and score distributions."""

import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import dkan_core
from dkan_core.config import TrainConfig
from dkan_core.data.encoding.histograms import count_up_to, quantile_knots
from dkan_core.evaluation.metrics import best_f1_threshold, compute_metrics
from dkan_core.model.calibration import Calibration, fit_calibration
from dkan_core.model.model_folder import SCORES
from dkan_core.scoring.prepared import ScoredSplit
from dkan_core.scoring.probabilities import to_probability
from dkan_core.training.state.refit_choices import CALIBRATION


def describe_best(
    scored: ScoredSplit, names: Sequence[str], config: TrainConfig, *, epoch: float, step: float
) -> tuple[Calibration, dict[str, Any]]:
    """Calibrate a model on validation; return the calibration and the metrics of its probabilities there.

    The metrics are those of ``describe_probabilities``, with the calibration and the model's origin.
    """
    # ``pos_weight`` adds this to the log-odds that are learned. It is subtracted before the fit, so that it is undone
    # even for a label with one class only, to which nothing can be fitted.
    prior = math.log(config.pos_weight)
    labels_NL = scored.labels_NL
    scale_L, shift_L = fit_calibration(labels_NL, scored.log_odds_NL - prior, scored.weight_N)
    shift_L = shift_L - scale_L * prior
    probabilities_NL = to_probability(scored.log_odds_NL * scale_L + shift_L)
    metrics = describe_probabilities(labels_NL, probabilities_NL, names, scored.weight_N)
    for name, *pair in zip(names, scale_L.tolist(), shift_L.tolist(), strict=True):
        metrics["labels"][name] |= zip(CALIBRATION, pair, strict=True)
    provenance = {"software": _software()}
    if config.init_from is not None:
        # A digest of the initial model's weights, which stays the same when the model is copied.
        provenance["init_from"] = config.init_from
    return (scale_L, shift_L), {**metrics, "split": "valid", "epoch": epoch, "step": step, **provenance}


def _software() -> str:
    """Return what computes here, with versions: another one may give other bits."""
    libraries = f"dkan {dkan_core.__version__}, torch {torch.__version__}, numpy {np.__version__}"
    return f"{libraries}, Python {platform.python_version()}"


def describe_probabilities(
    labels_NL: npt.NDArray[np.uint8],
    probabilities_NL: npt.NDArray[np.float32],
    names: Sequence[str],
    weight_N: npt.NDArray[np.float32] | None,
) -> dict[str, Any]:
    """Return metrics of probabilities, each label's threshold by F1, and how its probabilities are distributed.

    Args:
        labels_NL: 0, 1, or 255 for not measured.
        probabilities_NL: The model's probabilities.
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
