"""Scores as prepared data store them, back as floats."""

import torch
from torch import Tensor

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, STEPS


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
