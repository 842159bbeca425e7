"""The updates of a rank: what the ranks of a run without a server compute, and how they agree.

On the host, an update is one round; where every rank has a GPU, an update is many rounds on the devices.
"""

import logging
import math
import time
from dataclasses import asdict, replace

import numpy as np
import torch

from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.roles.own_updates import MAX_SECONDS, MAX_STEPS, rounds_before_anything_is_due
from dkan_core.training.roles.training_loop import UpdateSource
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.shared_memory import SharedMemory
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.utils.arrays import Float32

# Range of a checksum: sums of its squares over thousands of ranks are exact in float32.
CHECKSUM_VALUES = 1 << 6

logger = logging.getLogger(__name__)


def broadcast_state(memory: SharedMemory, process_group: ProcessGroup) -> None:
    """Give every rank the first one's ledger, state and restore points."""
    ledger = memory.ledger.read()
    restore_points = [record.read() for record in memory.restore_points]
    ledgers: list[object] = [asdict(each) for each in (ledger, *restore_points)]
    # With the restore points: all ranks must step back to the same one.
    arrays = [torch.from_numpy(array) for array in (memory.buffers_2KP, memory.restore_points_2KP)]
    process_group.broadcast(arrays, ledgers)
    if process_group.rank:
        ledger, *restore_points = (Ledger(**each) for each in ledgers)  # type: ignore[arg-type]
        memory.ledger.write(ledger)
        for record, restore_point in zip(memory.restore_points, restore_points, strict=True):
            record.write(restore_point)


class RankUpdates(UpdateSource):
    """The updates that the ranks compute together, the same in every rank.

    The sums of a commit also carry two things: whether the run is to end, which the first rank alone decides, so
    that all end after the same step; and a checksum of each rank's state, so that ranks that drift apart are noticed.
    """

    def __init__(self, process_group: ProcessGroup, store: ParameterStore, stopwatch: Stopwatch) -> None:
        super().__init__(store, stopwatch)
        self.process_group = process_group
        self._proposed_ending = 0
        self._agreed_ending = 0

    def agree_on_ending(self, reason: str) -> str:
        """Return what the first rank proposed before the last round; every rank knows itself that no step is left."""
        # Clocks differ between ranks, and only the first one sees the evaluator and Ctrl-C.
        if self.process_group.rank == 0:
            self._proposed_ending = ENDINGS.index(reason)
        return reason if reason == "epochs" else ENDINGS[self._agreed_ending]

    def _inputs(self, steps: range) -> RoundInputs:
        """Return this rank's inputs to some steps."""
        return RoundInputs(
            state_KP=self.store.state_KP,
            steps=steps,
            lr_scale=self.store.lr_scale,
            ending=self._proposed_ending,
            checksum=self._checksum(),
        )

    def _agree(self, totals: RoundTotals) -> bool:
        """Process what the ranks have exchanged; return whether all of them had the same state.

        If they had not, they continue with the first rank's state.
        """
        self._agreed_ending = int(totals.ending)
        # On a GPU the exchange ends when its sums are read.
        self.stopwatch.lap("exchange" if self.process_group.size > 1 else "compute")
        if totals.checksums_agree(self.process_group.size):
            return True
        step = self.store.ledger.step
        logger.warning("parameters diverged across ranks at step %d; continuing with those of rank 0", step)
        broadcast_state(self.store.memory, self.process_group)
        self.store.ledger = self.store.memory.ledger.read()
        return False

    def _update(self, totals: RoundTotals, rounds: int, array_P: Float32) -> WorkerUpdate:
        """Return the update of ``rounds`` rounds."""
        return WorkerUpdate(
            unit=self.store.ledger.units_done,
            units=rounds * self.store.rules.work_plan.workers,
            array_P=array_P,
            loss=totals.mean_loss,
            weight=totals.weight,
            rows=totals.rows,
        )

    def _checksum(self) -> int:
        # The restore point has a checksum anyway; one per round would read the whole state.
        newest = max((record.read() for record in self.store.memory.restore_points), key=lambda ledger: ledger.step)
        return newest.checksum % CHECKSUM_VALUES


class ReducedUpdates(RankUpdates):
    """One update per round, which every rank applies to its copy of the state."""

    def __init__(self, exchange: HostExchange, store: ParameterStore, stopwatch: Stopwatch) -> None:
        super().__init__(exchange.process_group, store, stopwatch)
        self.exchange = exchange

    def next_updates(self) -> list[WorkerUpdate]:
        self.stopwatch.lap("other")
        steps = self.store.rules.work_plan.steps_of_unit(self.store.ledger.units_done)
        totals = self.exchange.run_sync_round(self._inputs(steps))
        self._agree(totals)
        return [self._update(totals, 1, self.exchange.reduced_update())]


class DeviceRounds(RankUpdates):
    """The state after some rounds that the ranks take together on their GPUs, without synchronizing with the host.

    An update covers as many rounds as fit before something is due, within ``MAX_SECONDS`` by the first rank's clock.
    The first update covers one round.
    """

    def __init__(
        self, steps: DeviceSteps, process_group: ProcessGroup, store: ParameterStore, stopwatch: Stopwatch
    ) -> None:
        super().__init__(process_group, store, stopwatch)
        self.steps = steps
        self._state_3P = np.empty((3, store.memory.shape.parameters), np.float32)
        self._most_rounds = 1

    def next_updates(self) -> list[WorkerUpdate]:
        """Take part in the next rounds; return no update if the ranks began with different states."""
        self.stopwatch.lap("other")
        count = rounds_before_anything_is_due(self.store, self._most_rounds)
        totals = self._take(count)
        # Halve the rounds until one that is not finite stands alone; all ranks see the same totals.
        while count > 1 and (totals.broken or not math.isfinite(totals.loss)):
            count //= 2
            totals = self._take(count)
        self._most_rounds = max(1, int(totals.rounds))
        if not self._agree(totals):
            return []
        return [self._update(totals, count, self._state_3P.reshape(-1))]

    def close(self) -> None:
        """Take no more steps, so that the connections to the other ranks can be closed."""
        self.steps.release_graph()

    def _take(self, count: int) -> RoundTotals:
        """Take ``count`` rounds from the committed state on; return what is summed over the ranks."""
        plan, done = self.store.rules.work_plan, self.store.ledger.units_done
        rounds = [plan.steps_of_unit(done + index * plan.workers) for index in range(count)]
        inputs = self._inputs(range(rounds[0].start, rounds[-1].stop))
        started = time.perf_counter()
        np.copyto(self._state_3P, inputs.state_KP[:3])
        own = self.steps.take_rounds(self._state_3P, rounds, self.process_group.rank, inputs.lr_scale)
        seconds = (time.perf_counter() - started) / count
        self.stopwatch.lap("compute")
        most = min(MAX_STEPS // plan.interval, int(MAX_SECONDS / seconds))
        totals: RoundTotals = replace(
            RoundTotals.for_round(inputs, *own),
            broken=float(not np.isfinite(self._state_3P).all()),
            rounds=0.0 if self.process_group.rank else max(1.0, most),
        )
        return totals.over_ranks(self.process_group)
