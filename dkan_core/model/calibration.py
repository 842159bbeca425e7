"""Calibration: log-odds stretched and shifted so that probabilities mean what they say.

The method is Platt's (1999, "Probabilistic outputs for support vector machines"), with his targets, which hold back
where a class has few rows. The map rises, so the order of the rows, and with it average precision, stays as it is.

Shape suffixes: N rows, L labels.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.metrics import NOT_MEASURED

NEWTON_STEPS = 50
MIN_SCALE, MAX_SCALE = 0.1, 10.0


def fit_calibration(
    labels_NL: npt.NDArray[np.uint8], log_odds_NL: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return scale and shift of each label, fitted on validation rows.

    A label without both classes measured keeps scale 1 and shift 0.

    Shape:
        - Input: ``(N, L)`` uint8, ``(N, L)``
        - Output: ``(L,)``, ``(L,)``
    """
    fitted = [_fit(labels, log_odds) for labels, log_odds in zip(labels_NL.T, log_odds_NL.T, strict=True)]
    scale_L, shift_L = np.array(fitted, dtype=np.float32).reshape(-1, 2).T
    return scale_L, shift_L


def _fit(labels_N: npt.NDArray[np.uint8], log_odds_N: npt.NDArray[Any]) -> tuple[float, float]:
    positive_N = labels_N == 1
    positives, negatives = int(positive_N.sum()), int((labels_N == 0).sum())
    if not positives or not negatives:
        return 1.0, 0.0
    measured_N = labels_N != NOT_MEASURED
    target_N = np.where(positive_N, (positives + 1) / (positives + 2), 1 / (negatives + 2))[measured_N]
    input_N = log_odds_N[measured_N].astype(np.float64)
    center, spread = input_N.mean(), input_N.std() + 1e-6
    design_N2 = np.stack([(input_N - center) / spread, np.ones_like(input_N)], axis=1)
    slope_and_level = np.array([spread, center])
    for _ in range(NEWTON_STEPS):
        probability_N = 1 / (1 + np.exp(-design_N2 @ slope_and_level))
        curvature_N = probability_N * (1 - probability_N)
        curvature = design_N2.T @ (design_N2 * curvature_N[:, None]) + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, design_N2.T @ (target_N - probability_N)).clip(-1, 1)
        slope_and_level += step
        if np.abs(step).max() < 1e-7:
            break
    slope, level = slope_and_level
    scale = float(np.clip(slope / spread, MIN_SCALE, MAX_SCALE))
    return scale, float(level - scale * center)
