"""AdamW where parts of the model have learning rates of their own, or none: it steps stretch by stretch.

Shape suffixes: P trainable parameters of the model.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dkan_core.training.state.adamw import AdamState, Decayed, FlatAdamW, Float32, Rate

# Steps after which AdamW's bias corrections are 1 in float64: moments that come from an earlier run, freed from their
# bias there, count as so old.
SETTLED_STEPS = 1_000_000


class _Part(NamedTuple):
    """Parameters that follow one another and share a learning rate."""

    stretch: slice
    factor: float
    optimizer: FlatAdamW


class PartwiseAdamW(FlatAdamW):
    """AdamW whose stretches have factors of the learning rate; a frozen one, of factor 0, stays as it is to the bit.

    The learning rate multiplies the decay, so that factors apply to that as well.

    Args:
        decayed: As ``FlatAdamW`` takes them; none lies in two stretches.
        rates: Stretches with a factor other than 1, in order.
        threads: As ``FlatAdamW`` takes them.

    >>> state = AdamState.starting_at(np.ones(3, np.float32))
    >>> optimizer = PartwiseAdamW([(0, 3, 0.5)], [(0, 1, 0.0), (2, 3, 0.5)])
    >>> optimizer.step(state, state, np.ones(3, np.float32), lr=0.1, count=1)
    True
    >>> state.values_P.round(3).tolist()
    [1.0, 0.8500000238418579, 0.925000011920929]
    """

    def __init__(self, decayed: Sequence[Decayed], rates: Sequence[Rate], threads: int = 1) -> None:
        super().__init__(decayed, threads)
        self._parts = [_part(decayed, *each, threads) for each in _covering(rates)]

    def step(
        self,
        old: AdamState,
        new: AdamState,
        gradient_P: Float32,
        *,
        lr: float,
        count: int,
        scale: float = 1.0,
        clear: bool = False,
    ) -> bool:
        """Write the state after a step into ``new``, as ``FlatAdamW.step`` does, part by part."""
        finite = True
        for stretch, factor, optimizer in self._parts:
            gradient, before, after = gradient_P[stretch], _part_of(old, stretch), _part_of(new, stretch)
            if factor:
                finite &= optimizer.step(before, after, gradient, lr=lr * factor, count=count, scale=scale, clear=clear)
                continue
            for source_P, target_P in zip(vars(before).values(), vars(after).values(), strict=True):
                np.copyto(target_P, source_P)
            if clear:
                gradient.fill(0)
        return finite

    def trained_norm(self, gradient_P: Float32, norm: float, /) -> float:
        """Return the norm of what of a gradient is learned from: clipping looks at nothing that is frozen."""
        if all(factor for _, factor, _ in self._parts):
            return norm
        squares = [float(np.dot(gradient_P[s], gradient_P[s])) for s, factor, _ in self._parts if factor]
        return math.sqrt(sum(squares))

    def restore_frozen(self, old_P: Float32, new_P: Float32) -> None:
        """Put frozen parameters back, which a mean over workers may round otherwise."""
        for stretch, factor, _ in self._parts:
            if factor == 0:
                np.copyto(new_P[stretch], old_P[stretch])


def _part_of(state: AdamState, stretch: slice) -> AdamState:
    return AdamState(state.values_P[stretch], state.exp_avg_P[stretch], state.exp_avg_sq_P[stretch])


def _covering(rates: Sequence[Rate]) -> list[tuple[int, int | None, float]]:
    """Return stretches that cover all parameters, with the factor 1 between those that are given.

    >>> _covering([(0, 2, 0.0), (5, 6, 0.5)])
    [(0, 2, 0.0), (2, 5, 1.0), (5, 6, 0.5), (6, None, 1.0)]
    """
    covering: list[tuple[int, int | None, float]] = []
    end = 0
    for start, stop, factor in rates:
        covering += [(end, start, 1.0)] if start > end else []
        covering.append((start, stop, factor))
        end = stop
    return [*covering, (end, None, 1.0)]


def _part(decayed: Sequence[Decayed], start: int, stop: int | None, factor: float, threads: int) -> _Part:
    end = math.inf if stop is None else stop
    within = [
        (int(max(first, start)) - start, int(min(last, end)) - start, decay)
        for first, last, decay in decayed
        if first < end and last > start
    ]
    return _Part(slice(start, stop), factor, FlatAdamW(within, threads))
