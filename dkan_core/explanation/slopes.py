"""Gradient times spread: how steeply the log-odds follow a number's normal score, times how far the scores spread.

Shape suffixes: N rows, B rows of a chunk, F numeric features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dkan_core.explanation.columns import Column
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.model_response import LARGEST
from dkan_core.explanation.response import affordable_rows, first_rows, row_count, width
from dkan_core.model.base import TabularModel
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.decoding import decode_scores
from dkan_core.utils.arrays import Arrays, Float64

# Smaller than the chunks for scoring (in ``response``), because the forward pass keeps every layer's outputs, many
# floats per value, until the gradient is taken.
CHUNK_ROWS = 8192
CHUNK_CELLS = 1 << 22


def add_slopes(ranked: Sequence[Importance], columns: Sequence[Column], slopes_F: Float64) -> list[Importance]:
    """Return the importances with the slopes of the numeric columns filled in."""
    slopes = {column.name: float(slopes_F[column.numeric_index]) for column in columns if column.numeric}
    return [replace(importance, slope=slopes.get(importance.name)) for importance in ranked]


def measure_slopes(model: TabularModel, device: torch.device, arrays: Arrays, label: int, cells: float) -> Float64:
    """Return the mean absolute gradient of the log-odds by each score, times the scores' standard deviation.

    For a term ``w * score`` of a sum, this is the term's standard deviation. The gradient is taken by scores only, at
    the values that rows have; categories have none, as nothing lies between two codes. The codes of a number's frequent
    values, and crosses with them, stay unchanged, so the slope misses what the model learned through them. That is why
    columns are ranked by ``effect``.

    A missing value has no score to differentiate by: the mean gradient leaves such rows out. In the standard deviation
    they count as the score that the model reads for them, which is 0.

    Args:
        model: The model in eval mode, on ``device``.
        device: Where to compute.
        arrays: Rows with ``numeric``.
        label: Which of the model's labels; its log-odds are cut off at ±16, as in ``effect``.
        cells: Values to read at most; the backward pass counts as two forward ones.

    Shape:
        - Output: ``(F,)``, in log-odds
    """
    arrays = first_rows(arrays, affordable_rows(arrays, 3, cells))
    numeric_NF = torch.from_numpy(arrays["numeric"])
    steepness_F = torch.zeros(numeric_NF.shape[1], dtype=torch.float64, device=device)
    for chunk in _chunks(arrays, device):
        steepness_F += _summed_gradients(model, chunk, label)
    mean_F = steepness_F.cpu() / _present(numeric_NF).sum(dim=0).clamp(min=1)
    slopes_F: Float64 = (mean_F * decode_scores(numeric_NF).double().std(dim=0, correction=0)).numpy()
    return slopes_F


def _chunks(arrays: Arrays, device: torch.device) -> Iterator[dict[str, Tensor]]:
    step = max(1, min(CHUNK_ROWS, CHUNK_CELLS // width(arrays)))
    for start in range(0, row_count(arrays), step):
        yield {name: torch.from_numpy(array[start : start + step]).to(device) for name, array in arrays.items()}


def _present(numeric_BF: Tensor) -> Tensor:
    """Return which stored scores are not missing."""
    return numeric_BF != 0 if numeric_BF.dtype == torch.uint8 else ~numeric_BF.isnan()


def _summed_gradients(model: TabularModel, chunk: dict[str, Tensor], label: int) -> Tensor:
    """Return the sum over the rows with a value of the absolute gradient.

    Shape:
        - Output: ``(F,)``
    """
    # As floats without NaN, scores pass through the model's own decoding unchanged.
    scores_BF = decode_scores(chunk["numeric"]).requires_grad_()
    odds_B = model(scores_BF, chunk.get("categorical"), sparse=chunk.get("sparse"))[:, label].clamp(-LARGEST, LARGEST)
    # Rows do not depend on each other, so the gradient of their sum holds each row's own.
    (gradient_BF,) = torch.autograd.grad(odds_B.sum(), scores_BF)
    if isinstance(model, BlendedFastKAN):
        # Table lookups have no gradient.
        of_tables_BF = model.term_slopes(chunk["numeric"])[:, :, label]
        gradient_BF = gradient_BF + of_tables_BF * (odds_B[:, None].abs() < LARGEST)
    return (gradient_BF.abs() * _present(chunk["numeric"])).sum(dim=0, dtype=torch.float64)
