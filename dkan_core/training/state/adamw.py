"""AdamW on one flat buffer: it works on arrays in shared memory, from one copy of the state into another.

The native extension takes a step in one pass over memory; numpy, where that is not built, to the same bits.

Shape suffixes: P trainable parameters of the model; a state ``(3, P)`` holds these and their two moments.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.native.library import AdamWArguments, native_library
from dkan_core.utils.arrays import Float32

Decayed = tuple[int, int, float]
"""Range of the parameters, start and stop, and its decoupled weight decay, which the learning rate multiplies."""

Rate = tuple[int, int, float]
"""Range of the parameters, start and stop, and the factor of its learning rate; 0 if it is frozen."""

# These three are the defaults of the paper, and of torch.optim.AdamW, whose results a test compares.
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
# Numbers updated at a time: six arrays of so many stay in a core's cache between the passes over them.
BLOCK = 1 << 14


@dataclass(frozen=True)
class ParameterGroups:
    """Ranges of the flat parameters that the optimizer treats differently, each in order."""

    decayed: tuple[Decayed, ...] = ()
    """Each within one range of ``rates``, or outside of all."""

    rates: tuple[Rate, ...] = ()
    """Those with a factor other than 1."""


def initial_state(values_P: Float32) -> Float32:
    """Return the state ``(3, P)`` before the first step."""
    return np.stack([values_P, np.zeros_like(values_P), np.zeros_like(values_P)])


class _Group:
    """Consecutive parameters with the same factor of the learning rate, and those ranges of them that decay."""

    def __init__(self, decayed: Sequence[Decayed], start: int, stop: int | None, factor: float) -> None:
        self.span, self.factor = slice(start, stop), factor
        end = math.inf if stop is None else stop
        self.decayed = [
            (int(max(first, start)) - start, int(min(last, end)) - start, decay)
            for first, last, decay in decayed
            if first < end and last > start
        ]
        starts_D, stops_D, self.decay_D = np.array(self.decayed, np.float64).reshape(-1, 3).T
        assert (starts_D[1:] >= stops_D[:-1]).all() and (starts_D <= stops_D).all(), "in order"
        self.starts_D, self.stops_D = starts_D.astype(np.int64), stops_D.astype(np.int64)


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


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2), with groups of parameters.

    A group's factor multiplies the learning rate, and so the decay; one of factor 0 is frozen: it stays as it is to the
    bit.

    Args:
        groups: Which parameters decay, and which have another learning rate.
        threads: How many the native extension uses; the result is bit-identical.

    >>> state_3P = initial_state(np.ones(3, np.float32))
    >>> optimizer = FlatAdamW(ParameterGroups(decayed=((0, 3, 0.5),), rates=((0, 1, 0.0), (2, 3, 0.5))))
    >>> optimizer.step(state_3P, state_3P, np.ones(3, np.float32), lr=0.1, count=1)
    True
    >>> state_3P[0].round(3).tolist()
    [1.0, 0.8500000238418579, 0.925000011920929]
    """

    def __init__(self, groups: ParameterGroups, threads: int = 1) -> None:
        self.threads = threads
        self._groups = [_Group(groups.decayed, *each) for each in _covering(groups.rates)]
        self._scratch, self._scaled = np.empty((2, BLOCK), np.float32)

    def step(
        self,
        old_3P: Float32,
        new_3P: Float32,
        gradient_P: Float32,
        *,
        lr: float,
        count: int,
        scale: float = 1.0,
        clear: bool = False,
    ) -> bool:
        """Write the state after a step into ``new_3P``, which may be ``old_3P``; return whether it is all finite.

        Args:
            old_3P: State before the step.
            new_3P: State after it.
            gradient_P: Left as it is, unless it is to be cleared.
            lr: Learning rate.
            count: Steps so far, this one included.
            scale: What the gradient is multiplied by.
            clear: Whether the gradient is to be 0 afterwards: a pass of its own over it would cost more.
        """
        library = native_library()
        finite = True
        for group in self._groups:
            rate = lr * group.factor
            before, after, gradient = old_3P[:, group.span], new_3P[:, group.span], gradient_P[group.span]
            if library is not None and group.factor:
                finite &= self._native_step(library, group, before, after, gradient, rate, count, scale, clear)
                continue
            if group.factor:
                finite &= self._numpy_step(group, before, after, gradient, rate, count, scale)
            else:
                np.copyto(after, before)
            if clear:
                gradient.fill(0)
        return finite

    def trained_norm(self, gradient_P: Float32, norm: float) -> float:
        """Return the norm of a gradient without its frozen parameters, given the norm of all of it."""
        if all(group.factor for group in self._groups):
            return norm
        trained = [gradient_P[group.span] for group in self._groups if group.factor]
        return math.sqrt(sum(float(np.dot(each, each)) for each in trained))

    def restore_frozen(self, old_P: Float32, new_P: Float32) -> None:
        """Restore frozen parameters, which a mean over workers may have rounded."""
        for group in self._groups:
            if group.factor == 0:
                np.copyto(new_P[group.span], old_P[group.span])

    def _native_step(
        self,
        library: ctypes.CDLL,
        group: _Group,
        old_3P: Float32,
        new_3P: Float32,
        gradient_P: Float32,
        lr: float,
        count: int,
        scale: float,
        clear: bool,
    ) -> bool:
        arrays = (*old_3P, *new_3P, gradient_P)
        assert all(each.dtype == np.float32 and each.flags.c_contiguous for each in arrays), "flat float32 arrays"
        assert all(len(each) == len(gradient_P) for each in arrays), "arrays of one length"
        assert len(group.stops_D) == 0 or group.stops_D[-1] <= len(gradient_P), "ranges of the parameters"
        with np.errstate(over="ignore"):
            factors = (1 - lr * group.decay_D).astype(np.float32)
        ranges = (group.starts_D, group.stops_D, factors)
        pointers = (each.ctypes.data for each in (*arrays, *ranges))
        sizes = (len(factors), len(gradient_P), clear)
        root_scale, step_size = 1 / math.sqrt(1 - BETA2**count), lr / (1 - BETA1**count)
        moments = (BETA1, BETA2, 1 - BETA1, 1 - BETA2)
        arguments = AdamWArguments(*pointers, *sizes, *moments, root_scale, EPSILON, step_size, scale)
        return math.isfinite(library.dkan_adamw(ctypes.byref(arguments), self.threads))

    def _numpy_step(
        self, group: _Group, old_3P: Float32, new_3P: Float32, gradient_P: Float32, lr: float, count: int, scale: float
    ) -> bool:
        values_P, squares = new_3P[0], 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(gradient_P), BLOCK):
                block = slice(start, min(start + BLOCK, len(gradient_P)))
                values_P[block] = old_3P[0, block]
                for first, last, decay in group.decayed:
                    if first < block.stop and last > start:
                        values_P[max(first, start) : min(last, block.stop)] *= 1 - lr * decay
                gradient = gradient_P[block] if scale == 1 else gradient_P[block] * np.float32(scale)
                self._step_block(old_3P[:, block], new_3P[:, block], gradient, lr, count)
                # While the block is in the cache; an infinity or NaN anywhere shows in the sum.
                squares += float(np.dot(values_P[block], values_P[block]))
        return math.isfinite(squares)

    def _step_block(self, old_3P: Float32, new_3P: Float32, gradient: Float32, lr: float, count: int) -> None:
        _, old_avg, old_avg_sq = old_3P
        values, exp_avg, exp_avg_sq = new_3P
        # Two arrays that are used again and again: numpy would allocate one for every operation.
        scratch = self._scratch[: len(gradient)]
        scaled = self._scaled[: len(gradient)]
        np.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - BETA2
        np.multiply(old_avg_sq, BETA2, out=exp_avg_sq)
        exp_avg_sq += scratch
        np.multiply(gradient, 1 - BETA1, out=scaled)
        np.multiply(old_avg, BETA1, out=exp_avg)
        exp_avg += scaled
        np.sqrt(exp_avg_sq, out=scratch)
        scratch *= 1 / math.sqrt(1 - BETA2**count)
        scratch += EPSILON
        np.divide(exp_avg, scratch, out=scratch)
        scratch *= lr / (1 - BETA1**count)
        values -= scratch
