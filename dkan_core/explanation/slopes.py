"""Gradient times spread: how steeply the log-odds follow a number's score, times how far the scores spread.

Shape suffixes: B rows of a chunk, F numeric features, L labels.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dkan_core.data.encoding import Float64
from dkan_core.data.shards import Arrays
from dkan_core.explanation.columns import Column
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.response import LARGEST, affordable_rows, row_count, width
from dkan_core.model.tabular import TabularFastKAN, decode_scores

CHUNK_ROWS = 8192
CHUNK_CELLS = 1 << 22


def add_slopes(ranked: Sequence[Importance], columns: Sequence[Column], slopes_F: Float64) -> list[Importance]:
    """Return the importances with the slopes of the numeric columns filled in."""
    slopes = {column.name: float(slopes_F[column.score_index]) for column in columns if column.scored}
    return [replace(importance, slope=slopes.get(importance.name)) for importance in ranked]


def measure_slopes(
    model: TabularFastKAN, device: torch.device, arrays: Arrays, labels: Sequence[int], cells: float
) -> Float64:
    """Return the mean absolute gradient of the log-odds by each score, times the scores' standard deviation.

    For a term ``w * score`` of a sum this is the standard deviation of the term. The gradient is taken at the rows
    alone and by scores alone. A category has none, as there is nothing between two of its codes. The code of a number's
    frequent value, and the indicators of pairs it is in, stay as they are, so that what the model learned through them
    is missing here. That is why ``effect`` ranks the columns.

    A missing value has no score to differentiate by: such cells are left out of the mean gradient. They count in the
    standard deviation as what the model reads, which is 0.

    Args:
        model: The model, on ``device``, in eval mode.
        device: Where to compute.
        arrays: Rows with ``numeric``.
        labels: The labels to average over; log-odds are cut off at ±16, as everywhere in an explanation.
        cells: Values to read at most, for a forward pass and one backward pass a label, each as dear as two forward.

    Shape:
        - Output: ``(F,)``, in log-odds
    """
    rows = affordable_rows(arrays, 1 + 2 * len(labels), cells)
    step = max(1, min(CHUNK_ROWS, CHUNK_CELLS // width(arrays)))
    numeric = torch.from_numpy(arrays["numeric"][:rows])
    steepness_LF = torch.zeros(len(labels), numeric.shape[1], dtype=torch.float64, device=device)
    present_F, sum_F, squares_F = torch.zeros(3, numeric.shape[1], dtype=torch.float64, device=device)
    for start in range(0, rows, step):
        chunk = {name: torch.from_numpy(array[start : min(start + step, rows)]) for name, array in arrays.items()}
        stored_BF = chunk["numeric"].to(device)
        present_BF = stored_BF != 0 if stored_BF.dtype == torch.uint8 else ~stored_BF.isnan()
        steepness_LF += ...
    return steepness_LF.cpu().numpy()
