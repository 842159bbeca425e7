"""The updates of a process that trains alone: a rank without others, or the caller's own process."""

import math
import time

import numpy as np

from dkan_core.training.compute.local_steps import LocalSteps
from dkan_core.training.roles.training_loop import UpdateSource
from dkan_core.training.state.adamw import AdamState
from dkan_core.training.state.aggregation import LossTotals, WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.stopwatch import Stopwatch

MAX_STEPS = 256
"""Most steps between two commits, which copy the state: they are done again if the process dies."""

MAX_SECONDS = 2.0
"""Most time of these steps, about: the delay until Ctrl-C and the end of the run's time are noticed."""


class OwnSteps(UpdateSource):
    """Parameters and moments after some steps, to the bit those to which one worker of a parameter server leads.

    The steps are taken where the model is: on a GPU without a look at the host, on a CPU in memory that no other
    process reads. There are as many as there may be before something is due, and one at first, whose time tells how
    long others take.
    """

    def __init__(self, store: ParameterStore, steps: LocalSteps, stopwatch: Stopwatch) -> None:
        self.store = store
        self.steps = steps
        self.stopwatch = stopwatch
        self._state_3P = np.empty((3, store.memory.shape.parameters), np.float32)
        self._steps_in_time = 1
        """How many take ``MAX_SECONDS``."""

    def next_updates(self) -> list[WorkerUpdate]:
        self.stopwatch.lap("other")
        ledger = self.store.ledger
        most = min(MAX_STEPS, self._steps_in_time)
        steps = range(ledger.step, ledger.step + rounds_before_anything_is_due(self.store, most))
        totals = self._take(steps)
        # Again, until a step that is not finite stands alone: it is refused, and those before it are not.
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
        totals = self.steps.take(AdamState(*self._state_3P), steps, 0, self.store.lr_scale)
        seconds_per_step = (time.perf_counter() - started) / len(steps)
        self._steps_in_time = max(1, int(MAX_SECONDS / seconds_per_step))
        return totals


def rounds_before_anything_is_due(store: ParameterStore, most: int) -> int:
    """Return how many rounds, at most ``most``, may be one commit: none passes the next thing due, or the epoch."""
    plan, schedule = store.rules.work_plan, store.rules.schedule
    done = store.ledger.units_done // plan.workers
    most = min(most, plan.sync_rounds_per_epoch - done % plan.sync_rounds_per_epoch)
    for count in range(1, most):
        after = plan.step_after_units((done + count) * plan.workers)
        for due in (schedule.evaluations_due, schedule.restore_points_due):
            if due(after) > due(store.ledger.step):
                return count
    return most
