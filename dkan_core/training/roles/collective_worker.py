"""A collective worker, which is a rank of a run without a server: it computes, reduces, and does a server's work.

Every rank holds the whole state and applies the same reduced update to it by the same rules, so that all decide alike.
The first one's state is that of the run: it stands in the launcher's shared memory, and whatever rank is killed, all
begin anew from its last commit.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch

from dkan_core.training.collectives import STRATEGIES
from dkan_core.training.collectives.base import RoundInputs, RoundTotals, Strategy
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.device_steps import make_local_steps
from dkan_core.training.roles.own_updates import OwnSteps, OwnUpdates
from dkan_core.training.roles.post_step import PostStepHooks, publish_to
from dkan_core.training.roles.startup import ComputeProcess, open_compute_process
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.roles.training_loop import TrainingLoop, UpdateSource
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.ledger import ENDINGS, Ledger
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SharedMemory, create_memory

# So many different proofs: sums of their squares over thousands of ranks are exact in float32.
PROOFS = 1 << 6

logger = logging.getLogger(__name__)


def main(spec: ProcessSpec) -> None:
    """Train until the run ends, alone or with the other ranks."""
    with open_compute_process(spec) as process, _update_source(spec, process) as source:
        hooks = PostStepHooks(source.store, None if spec.rank else publish_to(spec.wakeup("evaluator"), source.store))
        TrainingLoop(source.store, source, hooks, process.stopwatch, process.heartbeat.record_activity).run()


@contextmanager
def _update_source(spec: ProcessSpec, process: ComputeProcess) -> "Iterator[OwnSteps | OwnUpdates | ReducedUpdates]":
    """Yield where this rank's updates come from, once its state is that of the first one."""
    if spec.config.strategy == "single":
        store = ParameterStore(process.memory, process.rules)
        if spec.config.takes_local_steps:
            on_step = process.heartbeat.record_activity
            steps = make_local_steps(process.replica, process.batches, process.rules, on_step)
            yield OwnSteps(store, steps, process.stopwatch)
            return
        yield OwnUpdates(store, process.replica, lambda step: process.batches.get(step, 0), process.stopwatch)
        return
    assert spec.rendezvous is not None, "ranks that exchange something have a rendezvous"
    device = process.replica.device
    process_group = ProcessGroup(spec.rendezvous, spec.rank, spec.shape.workers, device, spec.config.exchange_timeout)
    process_group.stopwatch = process.stopwatch
    # The launcher's memory is written to by the first rank alone.
    memory = create_memory(spec.shape) if spec.rank else process.memory
    # A rank that was restarted begins with empty memory, as all do at first.
    if process_group.size > 1:
        broadcast_state(memory, process_group)
    strategy = STRATEGIES[spec.config.strategy](process_group, process.replica, process.batches, process.rules)
    strategy.on_step = process.heartbeat.record_activity
    yield ReducedUpdates(strategy, ParameterStore(memory, process.rules), process.stopwatch)
    # Not after an error: the others would be waited for, and one of them may be what is gone.
    process_group.close()


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


class ReducedUpdates(UpdateSource):
    """The updates that the ranks compute and reduce together: one per round, the same in every rank.

    The sums of a round carry two things besides: whether the run is to end, which the first rank alone decides, so that
    all end after the same step; and a proof of each rank's state, so that ranks that drift apart are noticed.

    Args:
        strategy: How the ranks' updates become one.
        store: This rank's copy of the state that counts.
        stopwatch: Told what the time went into.
    """

    def __init__(self, strategy: Strategy, store: ParameterStore, stopwatch: Stopwatch) -> None:
        self.strategy = strategy
        self.store = store
        self.stopwatch = stopwatch
        self._proposed_ending = 0
        self._agreed_ending = 0

    def next_updates(self) -> list[WorkerUpdate]:
        """Take part in a round."""
        self.stopwatch.lap("other")
        totals = self.strategy.run_sync_round(
            RoundInputs(
                state_KP=self.store.state_KP,
                steps=self.store.rules.work_plan.steps_of_unit(self.store.ledger.units_done),
                lr_scale=self.store.lr_scale,
                ending=self._proposed_ending,
                proof=self._proof(),
            )
        )
        self._agreed_ending = int(totals.ending)
        process_group = self.strategy.process_group
        # On a GPU the exchange ends when its sums are read.
        self.stopwatch.lap("exchange" if process_group.size > 1 else "compute")
        if not totals.is_proven(process_group.size):
            step = self.store.ledger.step
            logger.warning("parameters diverged across ranks at step %d; continuing with those of rank 0", step)
            broadcast_state(self.store.memory, process_group)
            self.store.ledger = self.store.memory.ledger.read()
        return [self._update(totals)]

    def agree_on_ending(self, reason: str) -> str:
        """Return what the first rank proposed before the last round; that no step is left, all know by themselves."""
        # Clocks differ between ranks, and only the first one sees the evaluator and Ctrl-C.
        if self.strategy.process_group.rank == 0:
            self._proposed_ending = ENDINGS.index(reason)
        return reason if reason == "epochs" else ENDINGS[self._agreed_ending]

    def _proof(self) -> int:
        # Of the restore point, whose checksum is there anyway: one a round would read the whole state.
        newest = max((record.read() for record in self.store.memory.restore_points), key=lambda ledger: ledger.step)
        return newest.checksum % PROOFS

    def _update(self, totals: RoundTotals) -> WorkerUpdate:
        return WorkerUpdate(
            unit=self.store.ledger.units_done,
            units=self.store.rules.work_plan.workers,
            array_P=self.strategy.reduced_update(),
            loss=totals.mean_loss,
            weight=totals.weight,
            rows=totals.rows,
        )
