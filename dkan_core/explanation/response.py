"""The model as a function of prepared arrays, and how it answers when columns are set to values.

Shape suffixes: N rows, L labels, P values.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dkan_core.data.encoding.preprocessor import Float64
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.evaluation import prediction
from dkan_core.explanation.columns import Cells, Column, placed
from dkan_core.model.tabular import TabularFastKAN

# Rows that are set at once: two batches of scoring. More would take memory and be no faster.
CHUNK_ROWS = 32_768
# For wide data: 32 MB of uint8 scores, 128 MB of codes.
CHUNK_CELLS = 1 << 25
# Log-odds beyond are probabilities of one in nine million, where float32 leaves no digits: a difference of two of them
# says nothing, and one row of that kind would outweigh all others in a mean of squares.
LARGEST = 16.0

LogOdds = Callable[[Arrays], Float64]
"""Prepared arrays to log-odds ``(N, L)``."""


def log_odds(model: TabularFastKAN, device: torch.device, labels: Sequence[int]) -> LogOdds:
    """Return the model as a function to the log-odds of some of its labels, within ±16.

    Args:
        model: The model in eval mode, on ``device``.
        device: Where to compute.
        labels: Indexes of the labels, in the order of the function's output.
    """

    def function(arrays: Arrays) -> Float64:
        found_NL = prediction.log_odds(model, arrays, device)[:, list(labels)].cpu().numpy().astype(np.float64)
        odds_NL: Float64 = found_NL.clip(-LARGEST, LARGEST)
        return odds_NL

    return function


def respond(function: LogOdds, arrays: Arrays, settings: Sequence[tuple[Column, Cells]], label: int) -> Float64:
    """Return a label's log-odds of every row with the columns set to each of P values.

    Args:
        function: The model.
        arrays: Rows.
        settings: Columns, each with P values; the columns take their first value together, then their second, ...
        label: Which of the function's labels.

    Shape:
        - Output: ``(P, N)``
    """
    count, rows = len(settings[0][1]), row_count(arrays)
    chunk = max(1, min(CHUNK_ROWS // rows, CHUNK_CELLS // (rows * width(arrays))))
    found = []
    for start in range(0, count, chunk):
        part = [(column, cells[start : start + chunk]) for column, cells in settings]
        found.append(function(placed(arrays, part))[:, label].reshape(-1, rows))
    return np.concatenate(found)


def row_count(arrays: Arrays) -> int:
    """Return N, the number of rows."""
    return len(next(iter(arrays.values())))


def width(arrays: Arrays) -> int:
    """Return the number of values that one row holds."""
    return sum(array.shape[1] for array in arrays.values())


def first_rows(arrays: Arrays, count: int) -> Arrays:
    """Return the first rows; as ``prepare`` shuffled them, they are a fair sample."""
    return {name: array[:count] for name, array in arrays.items()}


def affordable_rows(arrays: Arrays, passes: int, cells: float, least: int = 64) -> int:
    """Return how many rows to take.

    Args:
        arrays: The rows there are.
        passes: How often each row that is taken will be scored.
        cells: Values that all passes together should read at most.
        least: Rows to take even where that exceeds ``cells``; fewer would make the mean over rows a matter of chance.
    """
    return min(row_count(arrays), max(least, int(cells / max(1, passes * width(arrays)))))
