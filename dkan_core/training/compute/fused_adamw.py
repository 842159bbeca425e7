"""AdamW's step on CUDA in one pass over parameters, gradients and moments: each number is read and written once.

Shape suffixes: P trainable parameters.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dkan_core.model.kernels.fused import OPTIONS
from dkan_core.training.state.adamw import BETA1, BETA2, EPSILON

BLOCK = 1024
"""Parameters of a program."""


@triton.jit
def _step(
    values, gradients, exp_avg, exp_avg_sq, decay, rates, factors, share, clip, size,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, RATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    part = tl.load(share)
    learned = part
    if RATES:
        rate = tl.load(rates + offsets, inside, 0.0)
        learned = tl.where(rate > 0, part, 0.0)
    lr = tl.load(factors) * part
    gradient = tl.load(gradients + offsets, inside, 0.0) * tl.load(clip)
    first = tl.load(exp_avg + offsets, inside, 0.0)
    second = tl.load(exp_avg_sq + offsets, inside, 0.0)
    first += (gradient - first) * (learned * (1 - BETA1))
    second += (gradient * gradient - second) * (learned * (1 - BETA2))
    change = lr / tl.load(factors + 1) * first / (tl.sqrt(second) / tl.load(factors + 2) + EPSILON)
    if RATES:
        change *= rate
    value = tl.load(values + offsets, inside, 0.0)
    value = value * (1 - lr * tl.load(decay + offsets, inside, 0.0)) - change
    tl.store(values + offsets, value, inside)
    tl.store(exp_avg + offsets, first, inside)
    tl.store(exp_avg_sq + offsets, second, inside)


def take_step(
    state_3P: Tensor,
    gradient_P: Tensor,
    factors_3: Tensor,
    decay_P: Tensor,
    rate_P: Tensor | None,
    share: Tensor,
    clip: Tensor,
) -> None:
    """Take the step of ``device_adamw.take_plain_step``; the arguments are those, and ``Rates`` one by one."""
    values_P, exp_avg_P, exp_avg_sq_P = state_3P
    rates_P = decay_P if rate_P is None else rate_P
    size = len(gradient_P)
    with torch.cuda.device_of(gradient_P):
        _step[(triton.cdiv(size, BLOCK),)](
            *(values_P, gradient_P, exp_avg_P, exp_avg_sq_P, decay_P, rates_P, factors_3, share, clip, size),
            BETA1=BETA1,
            BETA2=BETA2,
            EPSILON=EPSILON,
            RATES=rate_P is not None,
            BLOCK=BLOCK,
            **OPTIONS,
        )
