"""Predictions of a fitted classifier: log-odds, probabilities, and classes by a threshold."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import ConfigError
from dkan_core.integrations.sklearn.fitted import FittedClassifier
from dkan_core.integrations.sklearn.targets import classes_of, encode_labels
from dkan_core.scoring.probabilities import to_probability

BEST = "best"
"""The threshold of each label with the best F1 on the validation rows."""


def check_threshold(threshold: Any) -> None:
    """Check the parameter of the classifier.

    Raises:
        ConfigError: It is no threshold.
    """
    if threshold != BEST and not (isinstance(threshold, float | int | np.floating) and 0 < threshold < 1):
        raise ConfigError(f"threshold must be {BEST!r} or a number between 0 and 1, got {threshold!r}")


class PredictingMixin(FittedClassifier):
    """The methods that score rows; a mixin for the classifier."""

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return probabilities.

        Shape:
            - Output: ``(N, 2)``, one column per class; of several labels ``(N, L)``, each label's probability of 1
        """
        probabilities_NL = to_probability(self._log_odds(X))
        return np.hstack([1 - probabilities_NL, probabilities_NL]) if self._is_binary else probabilities_NL

    def predict_log_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the logarithms of the probabilities, also of those that are next to 0.

        Shape:
            - Output: as for ``predict_proba``
        """
        log_odds_NL = self._log_odds(X)
        both_NL = np.hstack([-log_odds_NL, log_odds_NL]) if self._is_binary else log_odds_NL
        return -np.logaddexp(np.float32(0), -both_NL)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Return log-odds.

        Shape:
            - Output: ``(N,)``, those of the second class; of several labels ``(N, L)``
        """
        log_odds_NL = self._log_odds(X)
        return log_odds_NL[:, 0] if self._is_binary else log_odds_NL

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; of several labels, the fraction of rows of which every measured label is right.

        Shape:
            - X: ``(N, F)``; y: ``(N,)`` or ``(N, L)``, NaN for not measured; sample_weight: ``(N,)``
        """
        predicted = self.predict(X)
        if self._is_binary:
            return float(accuracy_score(classes_of(y), predicted, sample_weight=sample_weight))
        labels_NL = encode_labels(y, self.classes_, self.labels_)
        check_consistent_length(predicted, labels_NL, sample_weight)
        measured_NL = labels_NL != NOT_MEASURED
        right_N = ((labels_NL == predicted) | ~measured_NL).all(axis=1)
        weight_N = measured_NL.any(axis=1) * (1.0 if sample_weight is None else np.asarray(sample_weight))
        if not weight_N.any():
            raise ValueError("y: no label of a row with a weight above 0 is measured")
        return float(np.average(right_N, weights=weight_N))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class of each row, or 0 and 1 for each of several labels: 1 above the threshold.

        Shape:
            - Output: ``(N,)`` or ``(N, L)``
        """
        check_threshold(self.threshold)
        threshold, log_odds_NL = self.threshold, self._log_odds(X)
        if isinstance(threshold, str):
            # As in the report, a row at the threshold counts as positive.
            ones_NL = to_probability(log_odds_NL) >= np.array([*self.thresholds_.values()], np.float32)
        else:
            ones_NL = log_odds_NL > np.log(threshold / (1 - threshold))
        found_NL = ones_NL.astype(np.int64)
        classes_N: npt.NDArray[Any] = self.classes_[found_NL[:, 0]] if self._is_binary else found_NL
        return classes_N

    @property
    def labels_(self) -> tuple[str, ...]:
        """Name of each label."""
        check_is_fitted(self)
        return self.architecture_.labels

    @property
    def thresholds_(self) -> dict[str, float]:
        """Threshold of each label's probability with the best F1 on validation."""
        check_is_fitted(self)
        return {label: float(self.metrics_["labels"][label]["threshold"]) for label in self.labels_}

    @property
    def _is_binary(self) -> bool:
        return len(self.architecture_.labels) == 1
