"""AdamW with parameter groups: ranges of the parameters with learning rates of their own, or none.

Shape suffixes: P trainable parameters of the model.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dkan_core.training.state.adamw import AdamState, Decayed, FlatAdamW, Rate
from dkan_core.utils.arrays import Float32

# Steps after which AdamW's bias corrections are 1 in float64: moments that come from an earlier run, freed from their
# bias there, count as so old.
SETTLED_STEPS = 1_000_000


class _Group(NamedTuple):
    """Consecutive parameters that share a learning rate."""

    span: slice
    factor: float
    optimizer: FlatAdamW


class GroupedAdamW(FlatAdamW):
    """AdamW whose groups have factors of the learning rate; a frozen one, of factor 0, stays as it is to the bit.

    The learning rate multiplies the decay, so that factors apply to that as well.

    Args:
        decayed: As ``FlatAdamW`` takes them; none lies in two groups.
        rates: Ranges with a factor other than 1, in order.
        threads: As ``FlatAdamW`` takes them.

    >>> state = AdamState.starting_at(np.ones(3, np.float32))
    >>> optimizer = GroupedAdamW([(0, 3, 0.5)], [(0, 1, 0.0), (2, 3, 0.5)])
    >>> optimizer.step(state, state, np.ones(3, np.float32), lr=0.1, count=1)
    True
    >>> state.values_P.round(3).tolist()
    [1.0, 0.8500000238418579, 0.925000011920929]
    """

    def __init__(self, decayed: Sequence[Decayed], rates: Sequence[Rate], threads: int = 1) -> None:
        super().__init__(decayed, threads)
        self._groups = [_group(decayed, *each, threads) for each in _covering(rates)]

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
        """Write the state after a step into ``new``, as ``FlatAdamW.step`` does, group by group."""
        finite = True
        for span, factor, optimizer in self._groups:
            gradient, before, after = gradient_P[span], _slice_of(old, span), _slice_of(new, span)
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
        if all(factor for _, factor, _ in self._groups):
            return norm
        squares = [float(np.dot(gradient_P[s], gradient_P[s])) for s, factor, _ in self._groups if factor]
        return math.sqrt(sum(squares))

    def restore_frozen(self, old_P: Float32, new_P: Float32) -> None:
        for span, factor, _ in self._groups:
            if factor == 0:
                np.copyto(new_P[span], old_P[span])


def _slice_of(state: AdamState, span: slice) -> AdamState:
    return AdamState(state.values_P[span], state.exp_avg_P[span], state.exp_avg_sq_P[span])


def _covering(rates: Sequence[Rate]) -> list[tuple[int, int | None, float]]:
    """Return ranges that cover all parameters, with the factor 1 between those that are given.

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


def _group(decayed: Sequence[Decayed], start: int, stop: int | None, factor: float, threads: int) -> _Group:
    end = math.inf if stop is None else stop
    within = [
        (int(max(first, start)) - start, int(min(last, end)) - start, decay)
        for first, last, decay in decayed
        if first < end and last > start
    ]
    return _Group(slice(start, stop), factor, FlatAdamW(within, threads))
