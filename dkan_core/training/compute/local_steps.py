"""Steps that a worker takes alone, between two exchanges of parameters.

Shape suffixes: P trainable parameters of the model; a state ``(3, P)`` holds these and AdamW's two moments.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.state.adamw import FlatAdamW
from dkan_core.training.state.aggregation import LossTotals, clip_factor, mean_into
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Float32


@dataclass
class LocalSteps(ABC):
    """A worker with an optimizer of its own."""

    replica: Replica
    batches: SliceBatches
    rules: UpdateRules
    on_step: Callable[[], None] = lambda: None
    """Called after every step."""

    @abstractmethod
    def take(self, state_3P: Float32, steps: range, slice_index: int, lr_scale: float) -> LossTotals:
        """Take steps on one slice of their batches; return the mean loss, the weight of that, and the rows.

        Args:
            state_3P: Changed in place.
            steps: Steps of the run, all in one epoch.
            slice_index: The slice.
            lr_scale: Factor of the learning rate.
        """


@dataclass
class HostSteps(LocalSteps):
    """Steps on the host, in the arrays of the state itself."""

    def __post_init__(self) -> None:
        self._optimizer = FlatAdamW(self.rules.groups, torch.get_num_threads())
        # Zeros between steps.
        self._gradient_P = np.zeros(self.replica.values_P.numel(), np.float32)
        self.replica.bind_gradient_array(self._gradient_P)

    def take(self, state_3P: Float32, steps: range, slice_index: int, lr_scale: float) -> LossTotals:
        config = self.rules.config
        taken = []
        self.replica.load(state_3P[0])
        for step in steps:
            rows = self.batches.get(step, slice_index)
            totals = self.replica.compute_gradient(rows, config, is_cleared=True)
            taken.append(totals)
            if totals.weight:
                scale = self._clip_factor()
                lr = self.rules.schedule.learning_rate(step) * lr_scale
                count = self.rules.optimizer_count(step)
                self._optimizer.step(state_3P, state_3P, self._gradient_P, lr=lr, count=count, scale=scale, clear=True)
            else:
                self._gradient_P.fill(0)
            self.on_step()
        weight = sum(each.weight for each in taken)
        loss = sum(each.loss * each.weight for each in taken) / (weight or 1.0)
        return LossTotals(loss, weight, sum(each.rows for each in taken))

    def _clip_factor(self) -> float:
        """Return the factor that clips the gradient; its norm takes a pass over it, which only clipping needs."""
        limit = self.rules.config.clip_norm
        if limit is None:
            return 1.0
        # Summed as a parameter server does: with one worker, both take the same steps to the bit.
        norm = mean_into(self._gradient_P, [self._gradient_P], [1.0])
        if not math.isfinite(norm):
            # A step with this gradient must be refused: a factor of 0 would hide it.
            return math.nan
        return clip_factor(self._optimizer.trained_norm(self._gradient_P, norm), limit)
