"""How updates of several workers become one: the modes of the parameter server.

Shape suffixes: P trainable parameters of the model; a state ``(3, P)`` holds these and AdamW's two moments.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.training.state.adamw import BLOCK, FlatAdamW
from dkan_core.utils.arrays import Float32


class LossTotals(NamedTuple):
    """Loss and weight of a computation, in addition to its result."""

    loss: float
    """Mean over the measured labels."""

    weight: float
    """Sum of their weights."""

    rows: int


@dataclass(frozen=True, kw_only=True)
class WorkerUpdate:
    """An update for a work unit, or for some that follow one another."""

    unit: int
    """The first work unit."""

    units: int = 1
    """How many it covers, from ``unit`` on."""

    array_P: Float32
    """A gradient or a difference of parameters; where parameters are averaged, these and two moments, ``(3 P,)``."""

    loss: float
    weight: float
    rows: int
    """See ``LossTotals``."""

    rank: int = -1
    """Rank of the worker that pushed it."""

    lease: int = 0
    """The lease by which that worker had the work unit."""

    staleness: int = 0
    """Work units applied since the worker was handed this one."""


@dataclass(frozen=True)
class OptimizerStep:
    """What a mode needs to know in addition to the updates."""

    optimizer: FlatAdamW
    lr: float
    count: int
    """Steps so far, this one included."""

    clip_norm: float | None


Aggregation = Callable[[Float32, Float32, Sequence[WorkerUpdate], OptimizerStep], bool]
"""Writes the state after the updates into the second of two; False where it is not all finite."""


def average_gradients(old_3P: Float32, new_3P: Float32, updates: Sequence[WorkerUpdate], step: OptimizerStep) -> bool:
    """``sync``: take an AdamW step with the mean gradient, summed in the order of the slices.

    Weighted by measured labels, it is the gradient of the global batch.
    """
    arrays = [each.array_P for each in updates]
    # One alone is the mean: nothing is copied.
    gradient_P = arrays[0] if len(arrays) == 1 else np.empty_like(old_3P[0])
    norm = mean_into(gradient_P, arrays, [each.weight for each in updates])
    if not math.isfinite(norm):
        return False
    # After the mean: the limit is for the gradient of the global batch, whatever the number of workers.
    scale = clip_factor(step.optimizer.trained_norm(gradient_P, norm), step.clip_norm)
    return step.optimizer.step(old_3P, new_3P, gradient_P, lr=step.lr, count=step.count, scale=scale)


def average_values(_: Float32, new_3P: Float32, updates: Sequence[WorkerUpdate], __: OptimizerStep) -> bool:
    """``average``: take the mean of the workers' parameters and moments, weighted by their rows.

    Workers keep no moments, so a work unit's result depends on the committed state, and not on the worker.
    """
    rows = [each.rows for each in updates]
    pushed = zip(*(each.array_P.reshape(3, -1) for each in updates), strict=True)
    return all(math.isfinite(mean_into(new_P, arrays, rows)) for new_P, arrays in zip(new_3P, pushed, strict=True))


def add_difference(old_3P: Float32, new_3P: Float32, updates: Sequence[WorkerUpdate], _: OptimizerStep) -> bool:
    """``async``: add one worker's difference, scaled down by its staleness.

    The factor 1 / (1 + staleness) is 1 for a worker that is alone, and gives equally fast workers equal shares.
    """
    # A commit names only one lease, from which a new server knows what is applied.
    (only,) = updates
    values_P = np.multiply(only.array_P, 1 / (1 + only.staleness), out=new_3P[0])
    values_P += old_3P[0]
    return math.isfinite(float(np.dot(values_P, values_P)))


def take_over(_: Float32, new_3P: Float32, updates: Sequence[WorkerUpdate], __: OptimizerStep) -> bool:
    """Local steps without a server: take parameters and moments as they are; the ranks have averaged them."""
    (only,) = updates
    np.copyto(new_3P, only.array_P.reshape(3, -1))
    # Check the moments, too: an infinite second moment would silently freeze its parameter for good.
    return bool(np.isfinite(only.array_P).all())


AGGREGATIONS: dict[str, Aggregation] = {"sync": average_gradients, "average": average_values, "async": add_difference}


def aggregation_for(config: ResolvedTrainConfig) -> Aggregation:
    """Return how the updates of a run become one."""
    return take_over if config.takes_local_steps else AGGREGATIONS[config.mode]


def clip_factor(norm: float, limit: float | None) -> float:
    """Return the factor that scales a gradient of this Euclidean norm down to ``limit``, if it is longer."""
    return limit / norm if limit is not None and norm > limit else 1.0


def mean_into(target_P: Float32, arrays: Sequence[Float32], weights: Sequence[float]) -> float:
    """Put the weighted mean of arrays ``(P,)`` into ``target_P``, summed in their order; return its Euclidean norm.

    A single array may be the target itself, and is left as it is.
    """
    total = sum(weights)
    squares = 0.0
    shares = [weight / total for weight in weights]
    scratch = np.empty(BLOCK, np.float32)
    # An overflow shows in the norm and is refused; a warning from numpy would be a second report.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(target_P), BLOCK):
            target = target_P[start : start + BLOCK]
            if target_P is not arrays[0]:
                np.multiply(arrays[0][start : start + BLOCK], shares[0], out=target)
            for array_P, share in zip(arrays[1:], shares[1:], strict=True):
                part = scratch[: len(target)]
                np.multiply(array_P[start : start + BLOCK], share, out=part)
                target += part
            squares += float(np.dot(target, target))
    # NaN compares as false.
    return math.sqrt(squares) if squares >= 0 else math.nan
