"""Unseen values: which columns of new rows hold values that the model does not know, in how many rows, or no values.

Shape suffixes: N rows.
"""

import logging
import math
import time
from collections.abc import Callable

import numpy as np

from dkan_core.data.encoding.preprocessor import MISSING, UNSEEN, Preprocessor
from dkan_core.data.encoding.sparse import EMPTY
from dkan_core.evaluation.drift.counting import expected_counts
from dkan_core.utils.arrays import Array, Arrays
from dkan_core.utils.messages import counted, listed_names

# Warn of shares that are this many standard errors above the share expected from training.
MIN_ERRORS = 3.0
# Ids per row, relative to training, below which the new rows probably use other ids.
FEW_IDS = 0.5
# Columns named in the log at most; a thousand would fill a page.
MAX_NAMED = 10
# With fewer rows, shares say little: a single row may well hold a rare value.
MIN_ROWS = 100
# Warn of a column without values if this is less likely by chance, given its missing values in training.
CHANCE = 1e-3
# By array, the integer that stands for a missing value, and the place of missing values in counts.
MISSING_CODES = {"numeric": 0, "categorical": MISSING}
PERIOD_SECONDS = 600.0

logger = logging.getLogger(__name__)


class UnseenValues:
    """Counts, by category, the rows with a value that the model does not know, and counts the ids that it knows.

    It also notes which columns have no value in any row.

    Args:
        preprocessor: The model's; its vocabularies are the known values.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._indices = [index for index, each in enumerate(preprocessor.coded) if each.kind == "category"]
        self._categories = preprocessor.category_features
        self._trained = preprocessor.counts or {}
        self.rows, self._unseen = 0, np.zeros(len(self._indices), np.int64)
        # By array and index, the columns without a value so far: the feature, and the column that it was made of.
        names = {each.name: each.column for each in preprocessor.numeric}
        self._empty = {("numeric", index): each for index, each in enumerate(names.items())}
        self._empty |= {
            ("categorical", index): (each.name, each.name)
            for index, each in zip(self._indices, self._categories, strict=True)
        }
        self._sparse = preprocessor.sparse
        self._ends = np.cumsum([feature.size for feature in self._sparse])
        self._ids = np.zeros(len(self._sparse), np.int64)

    def count(self, arrays: Arrays) -> dict[str, int]:
        """Count encoded rows: among their arrays ``categorical`` (N, C) and ``sparse`` (N, S).

        Returns:
            Of these rows, how many hold an unknown value, by category; those without any are left out.
        """
        self.rows += len(next(iter(arrays.values())))
        counts = [int(np.count_nonzero(arrays["categorical"][:, index] == UNSEEN)) for index in self._indices]
        self._unseen += np.array(counts, np.int64)
        self._empty = {
            (array, index): names
            for (array, index), names in self._empty.items()
            if _all_missing(arrays[array][:, index], array)
        }
        if self._sparse:
            up_to = [np.count_nonzero(arrays["sparse"] <= end) for end in (EMPTY, *self._ends)]
            self._ids += np.diff(up_to)
        return {each.name: count for each, count in zip(self._categories, counts, strict=True) if count}

    def warnings(self) -> list[str]:
        """Return a sentence for each column with more unknown values than in training, the worst first.

        Where columns have lost all values, a sentence that names these precedes them.
        """
        if not self.rows:
            return []
        found = [(self.rows, text) for text in self._empty_columns()]
        for category, unseen in zip(self._categories, self._unseen.tolist(), strict=True):
            if not unseen:
                continue
            counts = expected_counts(category, self._trained.get(category.name) or [0] * category.cardinality)
            total = max(1.0, float(counts.sum()))
            share, expected = unseen / self.rows, counts[UNSEEN] / total
            error = math.sqrt(expected * (1 - expected) * (1 / self.rows + 1 / total))
            if share > expected + MIN_ERRORS * error:
                rows = f"{unseen:,} of {self.rows:,} rows ({share:.2%})"
                text = f"column {category.name!r}: {rows} hold a value that the model does not know"
                found.append((unseen, f"{text}; {expected:.2%} expected from training"))
        # The number of ids per row varies about as much as its mean, so a few short rows say nothing.
        few = min(FEW_IDS, 1 - MIN_ERRORS / math.sqrt(self.rows))
        for feature, known in zip(self._sparse, self._ids.tolist(), strict=True):
            ones = known / self.rows
            if ones < few * feature.ones:
                text = f"column {feature.name!r}: rows have {ones:.2g} IDs that the model knows, on average"
                found.append((self.rows, f"{text}; {feature.ones:.2g} in training"))
        texts = [text for _, text in sorted(found, key=lambda pair: -pair[0])]
        more = len(texts) - MAX_NAMED
        return texts[:MAX_NAMED] + [f"such values are in {counted(more, 'more column')}"] * (more > 0)

    def _empty_columns(self) -> list[str]:
        """Return a sentence on the columns that have values in training and none here, if there are any."""
        found: dict[str, None] = {}
        for (array, _), (feature, column) in self._empty.items():
            counts = self._trained.get(feature, [])
            share = counts[MISSING_CODES[array]] / max(1, sum(counts)) if counts else 1.0
            if self.rows >= MIN_ROWS and share**self.rows < CHANCE:
                found[column] = None
        if not found:
            return []
        return [f"no value in any of {self.rows:,} rows, although training has some: {listed_names([*found])}"]


def _all_missing(column_N: Array, array: str) -> bool:
    # Most columns have a value among the first rows; the others of a batch are then not read.
    for rows_N in (column_N[:MIN_ROWS], column_N):
        missing_N = np.isnan(rows_N) if rows_N.dtype.kind == "f" else rows_N == MISSING_CODES[array]
        if not missing_N.all():
            return False
    return True


def unseen_warnings(preprocessor: Preprocessor, arrays: Arrays) -> list[str]:
    """Return the warnings of rows that are all encoded at once."""
    found = UnseenValues(preprocessor)
    found.count(arrays)
    return found.warnings()


class UnseenWatch:
    """Counts the rows of requests with unknown values, and warns where there are more than in training.

    Requests of ten minutes are taken together, so that the log has a line per column rather than per request.

    Args:
        preprocessor: The model's.
        where: The requests, as messages should call them.
        always_pause: Whether to wait ten minutes also after rows that needed no warning.
        clock: Seconds since some time.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        where: str = "requests",
        *,
        always_pause: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._preprocessor, self._where = preprocessor, where
        self._always_pause, self._clock = always_pause, clock
        self._found, self._due = UnseenValues(preprocessor), -math.inf

    def count(self, arrays: Arrays) -> dict[str, int]:
        """Count encoded rows, and return how many of these hold an unknown value, by category that has any."""
        counts = self._found.count(arrays)
        now = self._clock()
        if self._found.rows >= MIN_ROWS and now >= self._due:
            texts = self._found.warnings()
            for text in texts:
                logger.warning("%s: %s", self._where, text)
            self._found = UnseenValues(self._preprocessor)
            if texts or self._always_pause:
                self._due = now + PERIOD_SECONDS
        return counts
