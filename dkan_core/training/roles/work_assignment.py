"""Who does which work unit: handed out by the server, done once, handed out again when a worker is gone.

All that must outlive the server stands in shared memory: a work unit belongs to the worker whose lease names it, and a
new server finds it there.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.ledger import Ledger, WorkPlan
from dkan_core.training.state.shared_memory import SHUTDOWN, WAIT, Lease, Push, SharedMemory

UNRESPONSIVE_SECONDS = 1.0
"""A worker without a heartbeat for so long has its work unit handed to another."""


class WorkerLiveness:
    """Which workers are there to work: started, ready, and with a recent heartbeat."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._heartbeats = memory.heartbeats_R[: memory.shape.workers].copy()
        self._last_seen = np.full(len(self._heartbeats), time.monotonic())

    def poll_heartbeats(self) -> None:
        """Note the workers whose heartbeats have advanced since the last call."""
        heartbeats_W = self._memory.heartbeats_R[: len(self._heartbeats)].copy()
        self._last_seen[heartbeats_W != self._heartbeats] = time.monotonic()
        self._heartbeats = heartbeats_W

    def is_alive(self, rank: int) -> bool:
        """Tell whether a worker can do something now."""
        return self._is_ready(rank) and time.monotonic() - self._last_seen[rank] < UNRESPONSIVE_SECONDS

    def should_be_awaited(self, rank: int) -> bool:
        """Tell whether to wait for a worker: it is there, or it is the first of its rank and starts."""
        starts = self._memory.worker_generations[rank].read().generation == 1 and not self._is_ready(rank)
        return starts or self.is_alive(rank)

    def _is_ready(self, rank: int) -> bool:
        generation = self._memory.worker_generations[rank].read().generation
        return generation > 0 and self._memory.pushes[rank].read().generation == generation


class Leases:
    """The leases of a run.

    Args:
        memory: Shared memory, maybe with leases of an earlier server in it.
        ledger: What counts.
        work_plan: How the work is cut up.
        wakeups: One per worker.
        max_staleness: Work units aggregated since one was handed out, after which its update is too old; None where
            a round is aggregated as a whole before the next one begins.
    """

    def __init__(
        self,
        memory: SharedMemory,
        ledger: Ledger,
        work_plan: WorkPlan,
        wakeups: list[Wakeup],
        max_staleness: int | None,
    ) -> None:
        self.memory = memory
        self.work_plan = work_plan
        self.wakeups = wakeups
        self.max_staleness = max_staleness
        self.by_round = max_staleness is None
        self.liveness = WorkerLiveness(memory)
        self.collected: dict[int, WorkerUpdate] = {}
        self.late = ledger.late
        self.reassigned = ledger.reassigned
        self._held: dict[int, Lease] = {}
        leases = [record.read() for record in memory.leases]
        self._ids = itertools.count(1 + max(lease.id for lease in leases))
        self._next = max(ledger.next_unit, 1 + max(lease.unit for lease in leases))
        self._revoked: set[int] = set()
        self._recover(ledger, leases)

    def _recover(self, ledger: Ledger, leases: list[Lease]) -> None:
        """Take over an earlier server's leases of work units that are not done; of two for one, the newer."""
        for rank, lease in sorted(enumerate(leases), key=lambda pair: -pair[1].id):
            acked = rank == ledger.acked_rank and lease.id == ledger.acked_lease
            done = lease.unit < ledger.units_done if self.by_round else acked
            if lease.unit >= 0 and not done and lease.unit not in {held.unit for held in self._held.values()}:
                self._held[rank] = lease
                self.wakeups[rank].notify()
            elif lease.unit >= 0:
                self._write(rank, WAIT, ledger)

    @property
    def are_idle(self) -> bool:
        """Whether no work unit is begun and not aggregated."""
        return not self._held and not self.collected

    def hand_out(self, ledger: Ledger, lr_scale: float, *, new: bool) -> None:
        """Give a work unit to every worker that has none, beginning with units whose worker is gone.

        Args:
            ledger: What counts.
            lr_scale: Factor of the learning rate.
            new: Whether to begin work units that nobody has had; those of a round in progress are begun anyway.
        """
        self.liveness.poll_heartbeats()
        for unit in list(self._wanted(ledger)):
            if unit >= self._next and not new and not self.by_round:
                break
            holder = next((rank for rank, lease in self._held.items() if lease.unit == unit), None)
            if holder is not None and self.liveness.is_alive(holder):
                continue
            rank = self._choose(unit)
            if rank is None and unit >= self._next and not self.by_round:
                break
            if rank is None:
                continue
            self._stage(rank)
            self._held[rank] = self._write(rank, unit, ledger, lr_scale)
            if holder is not None:
                self._revoke(holder, ledger)
            self._next = max(self._next, unit + 1)

    def collect(self, ledger: Ledger) -> list[WorkerUpdate]:
        """Return the updates that can be aggregated now: those of a whole round, or one; else none."""
        for rank in range(self.work_plan.workers):
            push = self.memory.pushes[rank].read()
            if push.lease in self._revoked:
                self._revoked.discard(push.lease)
                self.late += 1
            lease = self._held.get(rank)
            if lease is None or push.lease != lease.id:
                continue
            update = self._worker_update(rank, lease, push, ledger)
            if self.by_round:
                del self._held[rank]
                self.collected[lease.unit] = update
            elif update.staleness > (self.max_staleness or 0):
                self.late += 1
                self._held[rank] = self._write(rank, lease.unit, ledger, lease.lr_scale)
            else:
                return [update]
        if len(self.collected) < self.work_plan.workers:
            return []
        taken = [self.collected[unit] for unit in sorted(self.collected)]
        self.collected.clear()
        return taken

    def release(self, updates: Iterable[WorkerUpdate], ledger: Ledger) -> None:
        """Free the workers whose updates were just aggregated, before the next commit acknowledges another's."""
        if not self.by_round:
            for each in updates:
                del self._held[each.rank]
                self._write(each.rank, WAIT, ledger)

    def _worker_update(self, rank: int, lease: Lease, push: Push, ledger: Ledger) -> WorkerUpdate:
        return WorkerUpdate(
            rank=rank,
            lease=lease.id,
            unit=lease.unit,
            array_P=self.memory.pushes_WN[rank],
            loss=push.loss,
            weight=push.weight,
            rows=push.rows,
            staleness=ledger.units_done - lease.units_done,
        )

    def shut_down_workers(self, ledger: Ledger) -> None:
        """Tell every worker that nothing is left to do."""
        for rank in range(self.work_plan.workers):
            self._write(rank, SHUTDOWN, ledger)

    def _wanted(self, ledger: Ledger) -> Iterable[int]:
        """Return the work units to be done now and not collected, oldest first."""
        if self.by_round:
            end = min(ledger.units_done + self.work_plan.workers, self.work_plan.count)
            units: Iterator[int] = iter(range(ledger.units_done, end))
        else:
            new = range(self._next, min(self._next + self.work_plan.workers, self.work_plan.count))
            units = itertools.chain(sorted(lease.unit for lease in self._held.values()), new)
        return (unit for unit in units if unit not in self.collected)

    def _choose(self, unit: int) -> int | None:
        """Return the worker for a work unit: its own, else one that is free; None to wait."""
        owner = self.work_plan.slice_of_unit(unit)
        idle = (rank for rank in range(self.work_plan.workers) if rank not in self._held)
        free = [rank for rank in idle if self.liveness.is_alive(rank)]
        if owner in free:
            return owner
        if self.by_round and owner not in self._held and self.liveness.should_be_awaited(owner):
            return None
        return free[0] if free else None

    def _write(self, rank: int, unit: int, ledger: Ledger, lr_scale: float = 1.0) -> Lease:
        lease = Lease(
            id=next(self._ids),
            unit=unit,
            units_done=ledger.units_done,
            active_buffer=ledger.active_buffer,
            lr_scale=lr_scale,
        )
        self.memory.leases[rank].write(lease)
        self.wakeups[rank].notify()
        return lease

    def _stage(self, rank: int) -> None:
        """Copy what a worker has pushed and nobody has aggregated, before it pushes something else."""
        for unit, update in self.collected.items():
            if update.rank == rank:
                self.collected[unit] = replace(update, array_P=update.array_P.copy(), rank=-1)

    def _revoke(self, rank: int, ledger: Ledger) -> None:
        self.reassigned += 1
        self._revoked.add(self._held.pop(rank).id)
        self._write(rank, WAIT, ledger)
