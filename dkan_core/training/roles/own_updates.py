"""The updates of a process that trains alone: a rank without others, or the caller's own process."""

import math
import time

import numpy as np

from dkan_core.training.compute.local_steps import LocalSteps
from dkan_core.training.roles.training_loop import UpdateSource
from dkan_core.training.state.aggregation import LossTotals, WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.stopwatch import Stopwatch

MAX_STEPS = 256
"""Most steps between two commits, which copy the state; these steps are repeated if the process dies."""

MAX_SECONDS = 2.0
"""Approximate limit on the time of these steps, and so on the delay until Ctrl-C or the time limit is noticed."""


class OwnSteps(UpdateSource):
    """Parameters and moments after some steps, bit-identical to those of a parameter server with one worker.

    The steps run where the model is: on a GPU without synchronizing with the host, on a CPU in memory that no other
    process reads. An update covers as many steps as fit before something is due, within ``MAX_SECONDS``. The first
    update covers one step, whose time tells how long others take.
    """

    def __init__(self, store: ParameterStore, steps: LocalSteps, stopwatch: Stopwatch) -> None:
        super().__init__(store, stopwatch)
        self.steps = steps
        self._state_3P = np.empty((3, store.memory.shape.parameters), np.float32)
        self._steps_in_time = 1
        """How many steps take ``MAX_SECONDS``."""

    def next_updates(self) -> list[WorkerUpdate]:
        self.stopwatch.lap("other")
        ledger = self.store.ledger
        most = min(MAX_STEPS, self._steps_in_time)
        steps = range(ledger.step, ledger.step + rounds_before_anything_is_due(self.store, most))
        totals = self._take(steps)
        # Halve the steps until one that is not finite stands alone: only that one is refused.
        while len(steps) > 1 and not (math.isfinite(totals.loss) and np.isfinite(self._state_3P).all()):
            steps = steps[: len(steps) // 2]
            totals = self._take(steps)
        self.stopwatch.lap("compute")
        update = WorkerUpdate(
            unit=ledger.units_done, units=len(steps), array_P=self._state_3P.reshape(-1), **totals._asdict()
        )
        return [update]

    def _take(self, steps: range) -> LossTotals:
        """Take steps from the committed state on."""
        started = time.perf_counter()
        np.copyto(self._state_3P, self.store.state_KP[:3])
        totals = self.steps.take(self._state_3P, steps, 0, self.store.lr_scale)
        seconds_per_step = (time.perf_counter() - started) / len(steps)
        self._steps_in_time = max(1, int(MAX_SECONDS / seconds_per_step))
        return totals


def rounds_before_anything_is_due(store: ParameterStore, most: int) -> int:
    """Return how many rounds, at most ``most``, one commit may cover: up to the next thing due or the epoch's end."""
    plan, schedule = store.rules.work_plan, store.rules.schedule
    done = store.ledger.units_done // plan.workers
    most = min(most, plan.sync_rounds_per_epoch - done % plan.sync_rounds_per_epoch)
    for count in range(1, most):
        after = plan.step_after_units((done + count) * plan.workers)
        for due in (schedule.evaluations_due, schedule.restore_points_due):
            if due(after) > due(store.ledger.step):
                return count
    return most
