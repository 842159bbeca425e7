"""Calibration: log-odds stretched and shifted so that probabilities mean what they say.

The method is Platt's (1999, "Probabilistic outputs for support vector machines"), with a normal prior of the scale
around 1 instead of his targets: few rows do not change a model much, and many outweigh it. The mean probability
is that of the labels. The map rises, so the order of the rows, and with it average precision, stays as it is.

Shape suffixes: N rows, L labels.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.labels import NOT_MEASURED

# Standard deviation of the prior of the scale (docs/benchmarks/experiments.md).
SCALE_STD = 0.5
# Usually five to ten steps are enough; log-odds of hundreds take about as many steps as they are large. The limit is
# for rows that the classes separate exactly, where the steps never end.
NEWTON_STEPS = 200
# A model that needs more than this is not miscalibrated but wrong, and the fit follows a few rows. A scale of zero or
# less would make all rows equal or turn their order around.
MIN_SCALE, MAX_SCALE = 0.1, 10.0
# Sixty halvings take an interval of hundreds below the precision of float64; log-odds of 30 are a probability that
# float64 cannot tell from 1 in a mean.
BISECTIONS, MAX_LEVEL = 60, 30.0

Calibration = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Scale and shift of each label's log-odds, ``(L,)`` each."""


def fit_calibration(
    labels_NL: npt.NDArray[np.uint8], log_odds_NL: npt.NDArray[Any], weight_N: npt.NDArray[Any] | None = None
) -> Calibration:
    """Return scale and shift of each label, fitted on validation rows.

    A label without both classes measured keeps scale 1 and shift 0.

    Args:
        labels_NL: 0, 1, or 255 for not measured.
        log_odds_NL: What the model gives, before calibration.
        weight_N: Weights of the rows. Default: equal ones.

    Shape:
        - Input: ``(N, L)`` uint8, ``(N, L)``, ``(N,)``
        - Output: ``(L,)``, ``(L,)``
    """
    weight_N = np.ones(len(labels_NL)) if weight_N is None else weight_N.astype(np.float64)
    fitted = [
        _fit(labels_N, log_odds_N, np.where(labels_N == NOT_MEASURED, 0.0, weight_N))
        for labels_N, log_odds_N in zip(labels_NL.T, log_odds_NL.T, strict=True)
    ]
    scale_L, shift_L = np.array(fitted, dtype=np.float32).reshape(-1, 2).T
    return scale_L, shift_L


def _fit(
    labels_N: npt.NDArray[np.uint8], log_odds_N: npt.NDArray[Any], weight_N: npt.NDArray[np.float64]
) -> tuple[float, float]:
    kept_N = weight_N > 0
    positive_N, weight_N, input_N = labels_N[kept_N] == 1, weight_N[kept_N], log_odds_N[kept_N].astype(np.float64)
    if positive_N.all() or not positive_N.any():
        return 1.0, 0.0
    # The prior counts as a number of rows, so the scale of the weights must not matter.
    weight_N = weight_N / weight_N.mean()
    center, spread = input_N.mean(), input_N.std() + 1e-6
    # Standardized, so that slope and level depend little on each other, and Newton's steps of at most 1 are far enough.
    design_N2 = np.stack([(input_N - center) / spread, np.ones_like(input_N)], axis=1)
    slope_and_level = np.array([spread, center])
    precision = (SCALE_STD * spread) ** -2
    for _ in range(NEWTON_STEPS):
        probability_N = sigmoid(design_N2 @ slope_and_level)
        curvature_N = weight_N * probability_N * (1 - probability_N)
        curvature = design_N2.T @ (design_N2 * curvature_N[:, None]) + np.diag([precision, 1e-6])
        gradient = design_N2.T @ (weight_N * (positive_N - probability_N))
        gradient[0] -= precision * (slope_and_level[0] - spread)
        step = np.linalg.solve(curvature, gradient).clip(-1, 1)
        slope_and_level += step
        is_found = bool(np.abs(step).max() < 1e-7)
        if is_found:
            break
    slope, level = slope_and_level
    scale = float(np.clip(slope / spread, MIN_SCALE, MAX_SCALE))
    # The level depends on the slope: if the slope was limited, find the level again.
    if scale != slope / spread or not is_found:
        level = _level(positive_N, scale * (input_N - center), weight_N)
    return scale, float(level - scale * center)


def _level(
    positive_N: npt.NDArray[np.bool_], stretched_N: npt.NDArray[np.float64], weight_N: npt.NDArray[np.float64]
) -> float:
    """Return the shift with which the mean probability is the share of positives, by bisection."""
    low, high = -stretched_N.max() - MAX_LEVEL, -stretched_N.min() + MAX_LEVEL
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        excess = (weight_N * (sigmoid(stretched_N + middle) - positive_N)).sum()
        low, high = (low, middle) if excess > 0 else (middle, high)
    return float((low + high) / 2)


def sigmoid(log_odds: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the probabilities that log-odds stand for, of any shape, without overflow.

    >>> sigmoid(np.array([-1e4, 0.0, 1e4])).round(3).tolist()
    [0.0, 0.5, 1.0]
    """
    # The exponential of 710 overflows float64.
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(-log_odds.astype(np.float64).clip(-700, 700)))
    return probabilities
