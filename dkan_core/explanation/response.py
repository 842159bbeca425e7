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

CHUNK_ROWS = 32_768
CHUNK_CELLS = 1 << 25
LARGEST = 16.0

LogOdds = Callable[[Arrays], Float64]
"""Prepared arrays to log-odds ``(N, L)``."""


def log_odds(model: TabularFastKAN, device: torch.device, labels: Sequence[int]) -> LogOdds:
    """Return the model as a function to the log-odds of some of its labels, within ±16."""

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
        part = [(column, _part(cells, start, start + chunk)) for column, cells in settings]
        found.append(function(placed(arrays, part))[:, label].reshape(-1, rows))
    return np.concatenate(found)


def _part(cells: Cells, start: int, stop: int) -> Cells:
    return Cells(*(None if array is None else array[start:stop] for array in (cells.scores_P, cells.codes_P)))


def row_count(arrays: Arrays) -> int:
    """Return N."""
    return len(next(iter(arrays.values())))


def width(arrays: Arrays) -> int:
    """Return the number of values that one row holds."""
    return sum(array.shape[1] for array in arrays.values())


def first_rows(arrays: Arrays, count: int) -> Arrays:
    """Return the first rows; as ``prepare`` shuffled them, they are a fair sample."""
    return {name: array[:count] for name, array in arrays.items()}


def affordable_rows(arrays: Arrays, passes: int, cells: float, least: int = 64) -> int:
    """Return how many rows to take so that ``passes`` over them read some ``cells`` values, but ``least`` of them."""
    return min(row_count(arrays), max(least, int(cells / max(1, passes * width(arrays)))))
