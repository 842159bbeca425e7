"""AdamW on the device of its parameters: in one fused pass on a GPU if that is right, else by torch's operations.

Shape suffixes: P trainable parameters, S steps planned at once.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dkan_core.model.kernels.verified import is_right, relative_error
from dkan_core.training.state.adamw import BETA1, BETA2, EPSILON, ParameterGroups

TOLERANCE = 1e-6
"""Norm of the error over that of the result."""

CHECKED_PARAMETERS = 5000


class Rates(NamedTuple):
    """How large a step is."""

    factors_3: Tensor
    """Learning rate, and the bias corrections of both moments."""

    decay_P: Tensor
    """Weight decay of each parameter."""

    rate_P: Tensor | None
    """Factor of the learning rate of each parameter, 0 where it is frozen; None where it is 1 for all."""


class DeviceAdamW:
    """The optimizer of a run whose state is on a device; the host plans steps ahead, and does not wait for them.

    Args:
        groups: Which parameters decay, and which have another learning rate.
        values_P: The parameters.
        most_steps: How many steps are planned at once, at most.
    """

    def __init__(self, groups: ParameterGroups, values_P: Tensor, most_steps: int) -> None:
        self._decay_P = torch.zeros_like(values_P)
        for start, stop, decay in groups.decayed:
            self._decay_P[start:stop] = decay
        rate_P = torch.ones_like(values_P)
        for start, stop, factor in groups.rates:
            rate_P[start:stop] = factor
        self._decay_P *= rate_P
        self._rate_P = rate_P if groups.rates else None
        self._factors_S3 = torch.zeros(most_steps, 3, device=values_P.device)

    def plan(self, lrs: Sequence[float], counts: Sequence[int]) -> None:
        """Set the learning rate and the step count of each of the next steps."""
        factors = [(lr, 1 - BETA1**count, math.sqrt(1 - BETA2**count)) for lr, count in zip(lrs, counts, strict=True)]
        self._factors_S3[: len(factors)].copy_(torch.tensor(factors))

    def step(self, index: Tensor, state_3P: Tensor, gradient_P: Tensor, share: Tensor, clip_norm: float | None) -> None:
        """Take a planned step.

        Args:
            index: Index of the step among those planned, ``(1,)``.
            state_3P: Parameters and both moments, changed in place.
            gradient_P: The gradient.
            share: Share of the step to take, a scalar; 0, for a batch without a measured label, changes nothing.
            clip_norm: Norm to which the gradient is scaled down; None for no limit.
        """
        clip = None
        if clip_norm is not None:
            trained_P = gradient_P if self._rate_P is None else gradient_P * (self._rate_P > 0)
            norm = torch.linalg.vector_norm(trained_P)
            # A step with an infinite gradient must be refused: a factor of 0 would hide it.
            clip = (clip_norm / norm).clamp(max=1.0).masked_fill(norm.isinf(), math.nan)
        rates = Rates(self._factors_S3[index].squeeze(0), self._decay_P, self._rate_P)
        take_step(state_3P, gradient_P, rates, share, clip)


def take_step(state_3P: Tensor, gradient_P: Tensor, rates: Rates, share: Tensor, clip: Tensor | None) -> None:
    """Take a step of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
        state_3P: Parameters and both moments, changed in place.
        gradient_P: The gradient.
        rates: Learning rate and weight decay.
        share: Share of the step to take, a scalar; 0 changes nothing.
        clip: Factor of the gradient, a scalar; None for 1.
    """
    if gradient_P.is_cuda and fused_is_right(gradient_P.device):
        from dkan_core.training.compute import fused_adamw

        fused_adamw.take_step(state_3P, gradient_P, *rates, share, torch.ones_like(share) if clip is None else clip)
    else:
        take_plain_step(state_3P, gradient_P, rates, share, clip)


def take_plain_step(state_3P: Tensor, gradient_P: Tensor, rates: Rates, share: Tensor, clip: Tensor | None) -> None:
    """Take the same step by separate operations of torch."""
    lr, first_rise, second_rise = rates.factors_3.unbind()
    values_P, exp_avg_P, exp_avg_sq_P = state_3P
    if clip is not None:
        gradient_P = gradient_P * clip
    # Frozen parameters keep their moments, too.
    learned = share if rates.rate_P is None else share * (rates.rate_P > 0)
    exp_avg_P.lerp_(gradient_P, (1 - BETA1) * learned)
    exp_avg_sq_P.lerp_(gradient_P.square(), (1 - BETA2) * learned)
    values_P.mul_(1 - lr * share * rates.decay_P)
    scale_P = exp_avg_sq_P.sqrt().div_(second_rise).add_(EPSILON)
    change_P = lr * share / first_rise * exp_avg_P / scale_P
    values_P.sub_(change_P if rates.rate_P is None else change_P * rates.rate_P)


@functools.cache
def fused_is_right(device: torch.device) -> bool:
    """Return whether the fused step equals that of torch's operations on random numbers; warn where it does not."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, device=device)

    state_3P, gradient_P = random(3, CHECKED_PARAMETERS), random(CHECKED_PARAMETERS) - 0.5
    # Some are frozen.
    rates = Rates(random(3) + 0.1, random(CHECKED_PARAMETERS), (random(CHECKED_PARAMETERS) - 0.2).relu())
    share, clip = random(2).unbind()

    def errors() -> list[float]:
        from dkan_core.training.compute import fused_adamw

        expected_3P, found_3P = state_3P.clone(), state_3P.clone()
        take_plain_step(expected_3P, gradient_P, rates, share, clip)
        fused_adamw.take_step(found_3P, gradient_P, *rates, share, clip)
        return [relative_error(*pair) for pair in zip(found_3P, expected_3P, strict=True)]

    return is_right("the fused step of AdamW", device, errors, TOLERANCE)
