"""The updates of a process that trains alone: a rank without others, or the caller's own process."""

from collections.abc import Callable

from dkan_core.data.format.shard_writer import Arrays
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.roles.training_loop import UpdateSource
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore


class OwnUpdates(UpdateSource):
    """The gradient of one global batch after the other, to the bit what one worker of a parameter server pushes.

    Args:
        store: The state that counts; the gradients are put into the first push buffer of its memory.
        replica: The model.
        rows_of_step: Returns a global batch; the steps are asked for in order.
        stopwatch: Told what the time went into.
    """

    def __init__(
        self, store: ParameterStore, replica: Replica, rows_of_step: Callable[[int], Arrays], stopwatch: Stopwatch
    ) -> None:
        self.store = store
        self.replica = replica
        self.rows_of_step = rows_of_step
        self.stopwatch = stopwatch
        self._gradient_P = store.memory.pushes_WN[0]
        replica.bind_gradient_array(self._gradient_P)

    def next_updates(self) -> list[WorkerUpdate]:
        """Compute the gradient of the next global batch."""
        self.stopwatch.lap("other")
        rules = self.store.rules
        unit = self.store.ledger.units_done
        (step,) = rules.work_plan.steps_of_unit(unit)
        self.replica.load(self.store.state_KP[0])
        totals = self.replica.compute_gradient(self.rows_of_step(step), rules.config)
        self.replica.copy_buffer(self.replica.gradients_P, self._gradient_P)
        self.stopwatch.lap("compute")
        return [WorkerUpdate(unit=unit, array_P=self._gradient_P, **totals._asdict())]
