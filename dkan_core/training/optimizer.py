"""AdamW on one flat buffer, in numpy: the parameter server starts without importing torch.

Shape suffixes: P trained numbers of the model.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Decayed = tuple[int, int, float]

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2), in place.

    Args:
        values_P: The parameters.
        decayed: Stretches of the parameters that decay: start, stop, and the decoupled decay, which the learning rate
            multiplies.

    >>> values = np.ones(2, np.float32)
    >>> FlatAdamW(values, decayed=[(1, 2, 0.5)]).step(np.ones(2, np.float32), rate=0.1)
    >>> values.round(2).tolist()
    [0.8999999761581421, 0.8500000238418579]
    """

    def __init__(self, values_P: Float32, *, decayed: Sequence[Decayed]) -> None:
        self.values_P, self.decayed = values_P, decayed
        self.first_P, self.second_P = np.zeros_like(values_P), np.zeros_like(values_P)
        self._scratch_P = np.empty_like(values_P)
        self.steps = 0

    def step(self, gradient_P: Float32, *, rate: float) -> None:
        """Take one step; ``gradient_P`` (P,) is used up as scratch space."""
        self.steps += 1
        for start, stop, decay in self.decayed:
            self.values_P[start:stop] *= 1 - rate * decay
        np.multiply(gradient_P, gradient_P, out=self._scratch_P)
        self._scratch_P *= 1 - SECOND_DECAY
        self.second_P *= SECOND_DECAY
        self.second_P += self._scratch_P
        gradient_P *= 1 - FIRST_DECAY
        self.first_P *= FIRST_DECAY
        self.first_P += gradient_P
        np.sqrt(self.second_P, out=self._scratch_P)
        self._scratch_P *= 1 / math.sqrt(1 - SECOND_DECAY**self.steps)
        self._scratch_P += EPSILON
        np.divide(self.first_P, self._scratch_P, out=self._scratch_P)
        self._scratch_P *= rate / (1 - FIRST_DECAY**self.steps)
        self.values_P -= self._scratch_P


def learning_rate(step: int, *, steps: int, peak: float, warmup_fraction: float) -> float:
    """Return the rate of a step: a straight rise, then half a cosine down to 0 at the end.

    >>> [round(learning_rate(step, steps=10, peak=1.0, warmup_fraction=0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    warmup = max(1, round(steps * warmup_fraction))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
