"""Values of requests that the model does not know: counted by column, and logged now and then."""

import logging
import math
import time
from collections.abc import Callable

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.evaluation.drift.unseen import UnseenValues
from dkan_core.serving.metrics import UNSEEN_ROWS
from dkan_core.utils.arrays import Arrays

# Of fewer rows, shares say little: a single one may well hold a rare value.
MIN_ROWS = 100
PERIOD_SECONDS = 600.0

logger = logging.getLogger(__name__)


class UnseenWatch:
    """Counts the rows of requests that hold such values, and warns where they are more than in training.

    Requests of ten minutes are looked at together, so that a log has a line per column and not one per request.

    Args:
        model: Name of the model, for the metrics.
        preprocessor: The model's.
        clock: Seconds since some time.
    """

    def __init__(self, model: str, preprocessor: Preprocessor, clock: Callable[[], float] = time.monotonic) -> None:
        self._model, self._preprocessor, self._clock = model, preprocessor, clock
        self._found, self._due = UnseenValues(preprocessor), -math.inf

    def count(self, arrays: Arrays) -> None:
        """Count encoded rows."""
        for column, rows in self._found.count(arrays).items():
            UNSEEN_ROWS.labels(self._model, column).inc(rows)
        now = self._clock()
        if self._found.rows < MIN_ROWS or now < self._due:
            return
        for text in self._found.warnings():
            logger.warning("requests: %s", text)
        self._found, self._due = UnseenValues(self._preprocessor), now + PERIOD_SECONDS
