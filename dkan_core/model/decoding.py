"""Scores as prepared data store them, as floats and as codes."""

import torch
from torch import Tensor

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, STEPS
from dkan_core.model.additive_shape import SCORE_CODES


def decode_scores(numeric_BF: Tensor) -> Tensor:
    """Turn stored normal scores back into floats on their device, 0 (the median) where missing.

    Shape:
        - Input: ``(B, F)`` uint8, float16 or float32
        - Output: ``(B, F)`` float32

    >>> decode_scores(torch.tensor([[0, 1, 128, 255]], dtype=torch.uint8))
    tensor([[ 0., -3.,  0.,  3.]])
    """
    if numeric_BF.dtype != torch.uint8:
        return numeric_BF.float().nan_to_num(nan=0.0)
    scores_BF = numeric_BF.float().sub_(1).mul_(2 * SCORE_LIMIT / STEPS).sub_(SCORE_LIMIT)
    return scores_BF.masked_fill_(numeric_BF == 0, 0.0)


def score_codes(numeric_BF: Tensor) -> Tensor:
    """Return stored scores as codes from 0 to 255; bytes are codes already.

    >>> score_codes(torch.tensor([[float("nan"), -3.0, 0.0, 3.0]])).tolist()
    [[0, 1, 128, 255]]
    """
    if numeric_BF.dtype == torch.uint8:
        return numeric_BF
    steps_BF = ((numeric_BF.float() + SCORE_LIMIT) * (STEPS / (2 * SCORE_LIMIT))).round() + 1
    return steps_BF.nan_to_num(nan=0.0).clamp(0, SCORE_CODES - 1).to(torch.uint8)
