"""The parameter server: hands out work units, aggregates what the workers make of them, steps the optimizer.

It can be killed at any moment: what counts stands in shared memory, and the next server continues from there. It hands
snapshots to the evaluator and restore points to the launcher, and never waits for either.
"""

import logging
from dataclasses import replace

from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.post_step import PostStepHooks
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.roles.work_assignment import Leases
from dkan_core.training.state.ledger import ENDINGS
from dkan_core.training.state.parameter_store import ParameterStore, Rules
from dkan_core.training.state.process_spec import ProcessSpec

PATIENCE_SECONDS = 0.1
"""How often to look for workers that are gone, while none has something to say."""

logger = logging.getLogger(__name__)


def main(spec: ProcessSpec) -> None:
    """Serve until every epoch is done, or somebody asks to end."""
    Server(spec).run()


class Server:
    """The loop over updates."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.memory = spec.open_memory()
        self.wakeup = spec.wakeup("server")
        self.heartbeat = Heartbeat(self.memory, spec.role)
        rules = Rules.from_config(spec.config, spec.train_rows, spec.decayed)
        self.store = ParameterStore(self.memory, rules)
        wakeups = [spec.wakeup(f"worker-{rank}") for rank in range(rules.work_plan.workers)]
        bound = spec.config.max_staleness if spec.config.mode == "async" else None
        self.leases = Leases(self.memory, self.store.ledger, rules.work_plan, wakeups, bound)
        self.hooks = PostStepHooks(self.store, spec.wakeup("evaluator"))
        self.stopwatch = Stopwatch(self.memory.server_time)

    def run(self) -> None:
        """Serve to the end, and see to what an earlier server did not come to."""
        pauses = self._run_hooks()
        while not self.store.ledger.ended:
            self.heartbeat.record_activity()
            self.leases.hand_out(self.store.ledger, self.store.lr_scale, new=not pauses)
            updates = self.leases.collect(self.store.ledger)
            self.stopwatch.lap("other")
            if updates:
                self.store.apply_updates(updates)
                self.leases.release(updates, self.store.ledger)
                self.stopwatch.lap("update")
            else:
                self.wakeup.wait(PATIENCE_SECONDS)
                self.stopwatch.lap("wait")
            pauses = self._run_hooks()
        self.leases.shut_down_workers(self.store.ledger)
        self.stopwatch.publish()
        while not self.hooks.publish_snapshot_if_due():
            self.heartbeat.record_activity()
            self.wakeup.wait(PATIENCE_SECONDS)

    def _run_hooks(self) -> bool:
        """Do what is due; return whether something waits until no work unit is begun and not aggregated.

        A restore point with work units in progress would lose them, and so would a snapshot, which can be resumed from
        as well.
        """
        ledger = replace(self.store.ledger, late=self.leases.late, reassigned=self.leases.reassigned)
        if ledger != self.store.ledger:
            self.store.commit(ledger)
        ending = "" if ledger.ended else self.hooks.ending_reason()
        if not (ending or self.hooks.restore_point_is_due or self.hooks.snapshot_is_due):
            return False
        if not self.leases.are_idle:
            return True
        if ending:
            self.store.commit(replace(ledger, ended=ENDINGS.index(ending)))
        self.hooks.publish_snapshot_if_due()
        self.hooks.save_restore_point_if_due()
        return False
