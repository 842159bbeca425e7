"""A collective worker, which is a rank of a run without a server: it computes, reduces, and does a server's work.

Every rank holds the whole state and applies the same reduced update to it by the same rules, so that all decide alike.
The first one's state is that of the run: it stands in the launcher's shared memory, and whatever rank is killed, all
begin anew from its last commit.
"""

import logging
import time
from dataclasses import asdict, replace

import torch

from dkan_core.training.collectives import STRATEGIES
from dkan_core.training.collectives.base import RoundInputs, RoundTotals, Strategy
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.post_step import PostStepHooks
from dkan_core.training.roles.startup import open_batches, use_device
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.roles.worker import PATIENCE_SECONDS
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.ledger import ENDINGS, Ledger
from dkan_core.training.state.parameter_store import ParameterStore, Rules
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SharedMemory, create_memory

PROOFS = 1 << 6
"""So many different proofs: sums of their squares over thousands of ranks are exact in float32."""

logger = logging.getLogger(__name__)


def main(spec: ProcessSpec) -> None:
    """Take part in every round until the run ends."""
    device = use_device(spec)
    memory = spec.open_memory()
    heartbeat = Heartbeat(memory, spec.role, spec.rank)
    process_group = ProcessGroup(spec.rendezvous, spec.rank, spec.shape.workers, device, spec.config.exchange_timeout)
    rules = Rules.from_config(spec.config, spec.train_rows, spec.decayed)
    with open_batches(spec, memory, device) as batches:
        process_group.stopwatch = batches.stopwatch
        if spec.rank:
            memory = create_memory(spec.shape)
        if process_group.size > 1:
            broadcast_state(memory, process_group)
        replica = Replica.from_architecture(spec.model, device)
        strategy = STRATEGIES[spec.config.strategy](process_group, replica, batches, rules)
        store = ParameterStore(memory, rules)
        hooks = PostStepHooks(store, None if spec.rank else spec.wakeup("evaluator"))
        CollectiveLoop(strategy, store, hooks, heartbeat, batches.stopwatch).run()
    process_group.close()


def broadcast_state(memory: SharedMemory, process_group: ProcessGroup) -> None:
    """Give every rank the first one's ledger, state and restore points."""
    ledger = memory.ledger.read()
    restore_points = [record.read() for record in memory.restore_points]
    ledgers: list[object] = [asdict(each) for each in (ledger, *restore_points)]
    arrays = [torch.from_numpy(array) for array in (memory.buffers_2KP, memory.restore_points_2KP)]
    process_group.broadcast(arrays, ledgers)
    if process_group.rank:
        ledger, *restore_points = (Ledger(**each) for each in ledgers)  # type: ignore[arg-type]
        memory.ledger.write(ledger)
        for record, restore_point in zip(memory.restore_points, restore_points, strict=True):
            record.write(restore_point)


class CollectiveLoop:
    """The loop over rounds.

    Args:
        strategy: How the ranks' updates become one.
        store: This rank's copy of the state that counts.
        hooks: What is due after a commit.
        heartbeat: Shows that rounds are made.
        stopwatch: Told what the time went into.
    """

    def __init__(
        self,
        strategy: Strategy,
        store: ParameterStore,
        hooks: PostStepHooks,
        heartbeat: Heartbeat,
        stopwatch: Stopwatch,
    ) -> None:
        self.strategy = strategy
        self.store = store
        self.hooks = hooks
        self.heartbeat = heartbeat
        self.stopwatch = stopwatch
        strategy.on_step = heartbeat.record_activity

    def run(self) -> None:
        """Run to the end, and see to what an earlier process did not come to."""
        ending = self._run_hooks(0)
        while not self.store.ledger.ended:
            ending = self._run_hooks(self._run_sync_round(ending))
        self.stopwatch.publish()

    def _run_sync_round(self, ending: int) -> int:
        """Take part in a round; return why the run ends after it, as all ranks know by then."""
        ledger = self.store.ledger
        plan = self.store.rules.work_plan
        self.stopwatch.lap("other")
        totals = self.strategy.run_sync_round(
            RoundInputs(
                state_KP=self.store.state_KP,
                steps=plan.steps_of_unit(ledger.units_done),
                lr_scale=self.store.lr_scale,
                ending=ending,
                proof=self._proof(),
            )
        )
        process_group = self.strategy.process_group
        # On a GPU the exchange ends when its sums are read.
        self.stopwatch.lap("exchange" if process_group.size > 1 else "compute")
        if not totals.is_proven(process_group.size):
            logger.warning("parameters diverged across ranks at step %d; continuing with those of rank 0", ledger.step)
            broadcast_state(self.store.memory, process_group)
            self.store.ledger = self.store.memory.ledger.read()
        self.store.apply_updates([self._worker_update(totals)])
        self.stopwatch.lap("update")
        return int(totals.ending)

    def _proof(self) -> int:
        newest = max((record.read() for record in self.store.memory.restore_points), key=lambda ledger: ledger.step)
        return newest.checksum % PROOFS

    def _worker_update(self, totals: RoundTotals) -> WorkerUpdate:
        return WorkerUpdate(
            rank=-1,
            lease=0,
            unit=self.store.ledger.units_done,
            units=self.store.rules.work_plan.workers,
            array_P=self.strategy.reduced_update(),
            loss=totals.mean_loss,
            weight=totals.weight,
            rows=totals.rows,
            staleness=0,
        )

    def _run_hooks(self, ending: int) -> int:
        """Do what is due after a commit; return why the run is to end after the next round, by this rank alone."""
        self.heartbeat.record_activity()
        ledger = self.store.ledger
        if ledger.step == self.store.rules.schedule.steps:
            ending = ENDINGS.index("epochs")
        if ending and not ledger.ended:
            self.store.commit(replace(ledger, ended=ending))
        while not self.hooks.publish_snapshot_if_due():
            self.heartbeat.record_activity()
            time.sleep(PATIENCE_SECONDS)
        self.hooks.save_restore_point_if_due()
        return 0 if self.hooks.evaluator is None else ENDINGS.index(self.hooks.ending_reason())
