"""Values that a model does not know: which columns of new rows hold them, and in how many rows.

Shape suffixes: N rows.
"""

import math

import numpy as np

from dkan_core.data.encoding.preprocessor import UNSEEN, Preprocessor
from dkan_core.data.format.shard_writer import Arrays

# Standard errors by which a share is above that of the training rows, some of whose values were too rare to be kept.
MIN_ERRORS = 3.0
# Columns that are named; of a thousand, a log would be a page.
MAX_NAMED = 10


class UnseenValues:
    """Counts the rows of each category that hold a value which the model does not know.

    Args:
        preprocessor: The model's, whose vocabularies are what it knows.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._places = [place for place, each in enumerate(preprocessor.coded) if each.kind == "category"]
        self._names = [preprocessor.coded[place].name for place in self._places]
        self._trained = preprocessor.counts or {}
        self._rows, self._unseen = 0, np.zeros(len(self._places), np.int64)

    def count(self, arrays: Arrays) -> None:
        """Count encoded rows, ``categorical`` (N, C) among their arrays."""
        if self._places:
            codes = arrays["categorical"]
            self._rows += len(codes)
            self._unseen += [np.count_nonzero(codes[:, place] == UNSEEN) for place in self._places]

    def warnings(self) -> list[str]:
        """Return a sentence for each column where such values are more frequent than in training, the worst first."""
        found = []
        for name, unseen in zip(self._names, self._unseen.tolist(), strict=True):
            share, trained = unseen / max(1, self._rows), self._share_in_training(name)
            error = math.sqrt(trained * (1 - trained) / max(1, self._rows))
            if share > trained + MIN_ERRORS * error:
                rows = f"{unseen:,} of {self._rows:,} rows ({share:.2%})"
                text = f"column {name!r}: {rows} hold a value that the model does not know; {trained:.2%} in training"
                found.append((unseen, text))
        texts = [text for _, text in sorted(found, key=lambda pair: -pair[0])]
        more = [f"{len(texts) - MAX_NAMED} more columns hold such values"] if len(texts) > MAX_NAMED else []
        return texts[:MAX_NAMED] + more

    def _share_in_training(self, name: str) -> float:
        counts = self._trained.get(name, [])
        return counts[UNSEEN] / max(1, sum(counts)) if counts else 0.0
