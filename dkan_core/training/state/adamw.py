"""AdamW on one flat buffer: it works on arrays in shared memory, from one copy of the state into another.

The native extension takes a step in one pass over memory; numpy, where that is not built, to the same bits.

Shape suffixes: P trainable parameters of the model.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkan_core.native.library import AdamWArguments, native_library
from dkan_core.utils.arrays import Float32

Decayed = tuple[int, int, float]
Rate = tuple[int, int, float]
"""Range of the parameters, start and stop, and the factor of its learning rate; 0 where it is frozen."""

# These three are the defaults of the paper, and of torch.optim.AdamW, whose results a test compares.
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
# Numbers updated at a time: six arrays of so many stay in a core's cache between the passes over them.
BLOCK = 1 << 14


@dataclass(frozen=True)
class AdamState:
    """Parameters and their moments, each ``(P,)``."""

    values_P: Float32
    exp_avg_P: Float32
    exp_avg_sq_P: Float32

    @classmethod
    def starting_at(cls, values_P: Float32) -> "AdamState":
        """Return the state before the first step, whose parameters are ``values_P`` itself."""
        return cls(values_P, np.zeros_like(values_P), np.zeros_like(values_P))


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2).

    Args:
        decayed: Ranges of the parameters that decay, in order: start, stop, and the decoupled decay, which the
            learning rate multiplies.
        threads: How many the native extension uses, for the same bits.

    >>> state = AdamState.starting_at(np.ones(2, np.float32))
    >>> FlatAdamW([(1, 2, 0.5)]).step(state, state, np.ones(2, np.float32), lr=0.1, count=1)
    True
    >>> state.values_P.round(2).tolist()
    [0.8999999761581421, 0.8500000238418579]
    """

    def __init__(self, decayed: Sequence[Decayed], threads: int = 1) -> None:
        self.decayed, self.threads = decayed, threads
        starts_D, stops_D, self._decay_D = np.array(decayed, np.float64).reshape(-1, 3).T
        assert (starts_D[1:] >= stops_D[:-1]).all() and (starts_D <= stops_D).all(), "in order"
        self._starts_D, self._stops_D = starts_D.astype(np.int64), stops_D.astype(np.int64)
        self._scratch, self._scaled = np.empty((2, BLOCK), np.float32)

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
        """Write the state after a step into ``new``, which may be ``old`` itself; return whether it is all finite.

        Args:
            old: State before the step.
            new: State after it.
            gradient_P: Left as it is, unless it is to be cleared.
            lr: Learning rate.
            count: Steps so far, this one included.
            scale: What the gradient is multiplied by.
            clear: Whether the gradient is to be 0 afterwards: a pass of its own over it would cost more.
        """
        library = native_library()
        if library is not None:
            return self._native_step(library, old, new, gradient_P, lr, count, scale, clear)
        squares = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(gradient_P), BLOCK):
                block = slice(start, min(start + BLOCK, len(gradient_P)))
                self._decay(old, new, block, lr)
                gradient = gradient_P[block] if scale == 1 else gradient_P[block] * np.float32(scale)
                self._step_block(old, new, gradient, block, lr, count)
                # While the block is in the cache; an infinity or NaN anywhere shows in the sum.
                squares += float(np.dot(new.values_P[block], new.values_P[block]))
        if clear:
            gradient_P.fill(0)
        return math.isfinite(squares)

    def trained_norm(self, _: Float32, norm: float, /) -> float:
        """Return the norm of what of a gradient is learned from, given that of all of it."""
        return norm

    def restore_frozen(self, old_P: Float32, new_P: Float32) -> None:
        """Put frozen parameters back, which a mean over workers may round otherwise: here there are none."""

    def _native_step(
        self,
        library: ctypes.CDLL,
        old: AdamState,
        new: AdamState,
        gradient_P: Float32,
        lr: float,
        count: int,
        scale: float,
        clear: bool,
    ) -> bool:
        states = (
            *(old.values_P, old.exp_avg_P, old.exp_avg_sq_P),
            *(new.values_P, new.exp_avg_P, new.exp_avg_sq_P),
        )
        arrays = (*states, gradient_P)
        assert all(each.dtype == np.float32 and each.flags.c_contiguous for each in arrays), "flat float32 arrays"
        assert all(len(each) == len(gradient_P) for each in arrays), "arrays of one length"
        assert len(self._stops_D) == 0 or self._stops_D[-1] <= len(gradient_P), "ranges of the parameters"
        with np.errstate(over="ignore"):
            factors = (1 - lr * self._decay_D).astype(np.float32)
        ranges = (self._starts_D, self._stops_D, factors)
        pointers = (each.ctypes.data for each in (*arrays, *ranges))
        sizes = (len(factors), len(gradient_P), clear)
        root_scale, step_size = 1 / math.sqrt(1 - BETA2**count), lr / (1 - BETA1**count)
        moments = (BETA1, BETA2, 1 - BETA1, 1 - BETA2)
        arguments = AdamWArguments(*pointers, *sizes, *moments, root_scale, EPSILON, step_size, scale)
        return math.isfinite(library.dkan_adamw(ctypes.byref(arguments), self.threads))

    def _decay(self, old: AdamState, new: AdamState, block: slice, lr: float) -> None:
        if new is not old:
            new.values_P[block] = old.values_P[block]
        for start, stop, decay in self.decayed:
            if start < block.stop and stop > block.start:
                new.values_P[max(start, block.start) : min(stop, block.stop)] *= 1 - lr * decay

    def _step_block(
        self, old: AdamState, new: AdamState, gradient: Float32, block: slice, lr: float, count: int
    ) -> None:
        exp_avg = new.exp_avg_P[block]
        exp_avg_sq = new.exp_avg_sq_P[block]
        # Two arrays that are used again and again: numpy would allocate one for every operation.
        scratch = self._scratch[: len(gradient)]
        scaled = self._scaled[: len(gradient)]
        np.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - BETA2
        np.multiply(old.exp_avg_sq_P[block], BETA2, out=exp_avg_sq)
        exp_avg_sq += scratch
        np.multiply(gradient, 1 - BETA1, out=scaled)
        np.multiply(old.exp_avg_P[block], BETA1, out=exp_avg)
        exp_avg += scaled
        np.sqrt(exp_avg_sq, out=scratch)
        scratch *= 1 / math.sqrt(1 - BETA2**count)
        scratch += EPSILON
        np.divide(exp_avg, scratch, out=scratch)
        scratch *= lr / (1 - BETA1**count)
        new.values_P[block] -= scratch
