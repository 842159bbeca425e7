"""Who does which work unit: handed out by the server, done once, handed out again when a worker is gone.

All that must outlive the server stands in shared memory: a work unit belongs to the worker whose lease names it, and a
new server finds it there. ``SyncAssignment`` hands out a round at a time, ``AsyncAssignment`` one unit after the other.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.roles.training_loop import UpdateSource
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.shared_memory import SHUTDOWN, WAIT, Lease, SharedMemory
from dkan_core.training.state.stopwatch import Stopwatch

# A worker without a heartbeat for so long has its work unit handed to another. These are ten heartbeats: on a busy
# machine, where a few come late, no work is done twice, and a worker that is stopped delays a round by a second.
REASSIGN_AFTER_SECONDS = 1.0

# How often to look for workers that are gone while none has something to say: a tenth of the time above.
POLL_SECONDS = 0.1


class WorkerLiveness:
    """Which workers are available: started, ready, and with a recent heartbeat."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._heartbeats = memory.heartbeats_R[: memory.shape.workers].copy()
        # As if all had just been seen: a replacement server has not seen any of them yet.
        self._last_seen = np.full(len(self._heartbeats), time.monotonic())

    def poll_heartbeats(self) -> None:
        """Note the workers whose heartbeats have advanced since the last call."""
        heartbeats_W = self._memory.heartbeats_R[: len(self._heartbeats)].copy()
        self._last_seen[heartbeats_W != self._heartbeats] = time.monotonic()
        self._heartbeats = heartbeats_W

    def is_alive(self, rank: int) -> bool:
        """Return whether a worker can take work now."""
        return self._is_ready(rank) and time.monotonic() - self._last_seen[rank] < REASSIGN_AFTER_SECONDS

    def should_be_awaited(self, rank: int) -> bool:
        """Return whether to wait for a worker: it is available, or it is the first of its rank and still starts."""
        starts = self._memory.worker_generations[rank].read().generation == 1 and not self._is_ready(rank)
        return starts or self.is_alive(rank)

    def _is_ready(self, rank: int) -> bool:
        generation = self._memory.worker_generations[rank].read().generation
        return generation > 0 and self._memory.pushes[rank].read().generation == generation


class WorkAssignment(UpdateSource, ABC):
    """The leases of a run, and the updates that workers push for them."""

    def __init__(self, store: ParameterStore, wakeup: Wakeup, wakeups: Sequence[Wakeup], stopwatch: Stopwatch) -> None:
        super().__init__(store, stopwatch)
        self.wakeup = wakeup
        self.memory = store.memory
        self.work_plan = store.rules.work_plan
        self.wakeups = wakeups
        self.liveness = WorkerLiveness(store.memory)
        # Counted on from what the ledger has: a server may have died before this one.
        self.late = store.ledger.late
        self.reassigned = store.ledger.reassigned
        self._held: dict[int, Lease] = {}
        """The lease of each worker that has work to do, by its rank."""

        self._revoked: set[int] = set()
        leases = [record.read() for record in self.memory.leases]
        self._ids = itertools.count(1 + max(lease.id for lease in leases))
        self._recover(leases)

    def _recover(self, leases: Sequence[Lease]) -> None:
        """Take over an earlier server's leases of work units that are not done; of two for one unit, the newer."""
        for rank, lease in sorted(enumerate(leases), key=lambda pair: -pair[1].id):
            if lease.unit < 0:
                continue
            if self._is_done(lease) or self._holder(lease.unit) is not None:
                self._write(rank, WAIT)
            else:
                self._held[rank] = lease
                self.wakeups[rank].notify()

    @abstractmethod
    def _is_done(self, lease: Lease) -> bool:
        """Return whether the work unit of a lease is committed."""

    @abstractmethod
    def _hand_out(self) -> None:
        """Give work units to workers that have none, beginning with units whose worker is gone."""

    @abstractmethod
    def _collect(self) -> list[WorkerUpdate]:
        """Return the updates that can be applied together now; else none."""

    @property
    def is_idle(self) -> bool:
        """Whether no work unit is begun and not applied."""
        return not self._held

    @property
    def counters(self) -> dict[str, int]:
        """Pushes that came too late, and work units that were handed to another worker."""
        return {"late": self.late, "reassigned": self.reassigned}

    def next_updates(self) -> list[WorkerUpdate]:
        """Give work to the workers that have none; return what can be applied of what they have pushed."""
        self.liveness.poll_heartbeats()
        self._hand_out()
        updates = self._collect()
        self.stopwatch.lap("other")
        if not updates:
            self.wakeup.wait(POLL_SECONDS)
            self.stopwatch.lap("wait")
        return updates

    def close(self) -> None:
        """Tell every worker that nothing is left to do."""
        for rank in range(self.work_plan.workers):
            self._write(rank, SHUTDOWN)

    def _holder(self, unit: int) -> int | None:
        return next((rank for rank, lease in self._held.items() if lease.unit == unit), None)

    def _needs_worker(self, unit: int) -> bool:
        """Return whether no live worker is at work on a unit."""
        holder = self._holder(unit)
        return holder is None or not self.liveness.is_alive(holder)

    def _free_worker(self, unit: int) -> int | None:
        """Return a live worker without work, preferably the one that the unit falls to."""
        idle = (rank for rank in range(self.work_plan.workers) if rank not in self._held)
        free = [rank for rank in idle if self.liveness.is_alive(rank)]
        owner = self.work_plan.slice_of_unit(unit)
        return owner if owner in free else next(iter(free), None)

    def _lease(self, rank: int, unit: int) -> None:
        """Lease a unit to a worker; a worker that holds it already loses it."""
        # The new lease is written before the old one is revoked: a server that dies in between leaves two, of which the
        # next one takes the newer.
        holder = self._holder(unit)
        self._held[rank] = self._write(rank, unit)
        if holder is not None:
            self.reassigned += 1
            self._revoked.add(self._held.pop(holder).id)
            self._write(holder, WAIT)

    def _write(self, rank: int, unit: int) -> Lease:
        # The commit at which a lease was written tells how stale the update is.
        ledger = self.store.ledger
        lease = Lease(
            id=next(self._ids),
            unit=unit,
            units_done=ledger.units_done,
            active_buffer=ledger.active_buffer,
            lr_scale=self.store.lr_scale,
        )
        self.memory.leases[rank].write(lease)
        self.wakeups[rank].notify()
        return lease

    def _pushed(self, rank: int) -> WorkerUpdate | None:
        """Return what a worker has pushed for its lease, if it has; a push for a lease that was revoked is counted."""
        push = self.memory.pushes[rank].read()
        if push.lease in self._revoked:
            self._revoked.discard(push.lease)
            self.late += 1
        lease = self._held.get(rank)
        if lease is None or push.lease != lease.id:
            return None
        return WorkerUpdate(
            rank=rank,
            lease=lease.id,
            unit=lease.unit,
            array_P=self.memory.pushes_WN[rank],
            loss=push.loss,
            weight=push.weight,
            rows=push.rows,
            staleness=self.store.ledger.units_done - lease.units_done,
        )


class SyncAssignment(WorkAssignment):
    """A round at a time: its updates are applied together, before the next one begins.

    Units are handed out even while something waits until the source is idle: a round that has begun must be finished,
    and the next one begins only after what has waited is done.
    """

    def __init__(self, store: ParameterStore, wakeup: Wakeup, wakeups: Sequence[Wakeup], stopwatch: Stopwatch) -> None:
        super().__init__(store, wakeup, wakeups, stopwatch)
        self._collected: dict[int, WorkerUpdate] = {}
        """The updates of the round in progress, by work unit."""

    def _is_done(self, lease: Lease) -> bool:
        return lease.unit < self.store.ledger.units_done

    @property
    def is_idle(self) -> bool:
        return not self._held and not self._collected

    def _hand_out(self) -> None:
        """Give the units of a round to the workers that they fall to; to another where that one is gone."""
        done = self.store.ledger.units_done
        for unit in range(done, min(done + self.work_plan.workers, self.work_plan.count)):
            if unit in self._collected or not self._needs_worker(unit):
                continue
            rank = self._free_worker(unit)
            if rank is not None and not self._should_wait_for_owner(unit, rank):
                self._stage(rank)
                self._lease(rank, unit)

    def _should_wait_for_owner(self, unit: int, rank: int) -> bool:
        """Return whether a unit is better left to the worker that it falls to, which will soon be free or started."""
        # Waiting costs less: a worker reads only its own slices ahead, and another worker would do two units in a row.
        owner = self.work_plan.slice_of_unit(unit)
        return rank != owner and owner not in self._held and self.liveness.should_be_awaited(owner)

    def _stage(self, rank: int) -> None:
        """Copy what a worker has pushed and is not applied yet, before it pushes something else."""
        for unit, update in self._collected.items():
            if update.rank == rank:
                self._collected[unit] = replace(update, array_P=update.array_P.copy(), rank=-1)

    def _collect(self) -> list[WorkerUpdate]:
        """Return the updates of a round, in the order of its slices, once all are there."""
        for rank in range(self.work_plan.workers):
            update = self._pushed(rank)
            if update is not None:
                del self._held[rank]
                self._collected[update.unit] = update
        if len(self._collected) < self.work_plan.workers:
            return []
        # Floating-point sums depend on their order: with the order of the slices, the bits do not depend on who was
        # first.
        updates = [self._collected[unit] for unit in sorted(self._collected)]
        self._collected.clear()
        return updates


class AsyncAssignment(WorkAssignment):
    """One unit after the other, to any free worker; each update is applied as it arrives, unless it is too stale.

    A unit is applied at most once: a commit names the lease that it takes in.
    """

    def __init__(self, store: ParameterStore, wakeup: Wakeup, wakeups: Sequence[Wakeup], stopwatch: Stopwatch) -> None:
        super().__init__(store, wakeup, wakeups, stopwatch)
        # Continue after every unit that an earlier server has leased or applied; the ledger counts leases that are
        # done.
        self._next = max([store.ledger.next_unit, *(1 + lease.unit for lease in self._held.values())])

    def _is_done(self, lease: Lease) -> bool:
        return lease.id == self.store.ledger.acked_lease

    def _hand_out(self) -> None:
        """Give every free worker a unit: first those whose worker is gone, then new ones."""
        for unit in sorted(lease.unit for lease in self._held.values()):
            rank = self._free_worker(unit) if self._needs_worker(unit) else None
            if rank is not None:
                self._lease(rank, unit)
        while self.may_begin and self._next < self.work_plan.count:
            rank = self._free_worker(self._next)
            if rank is None:
                break
            self._lease(rank, self._next)
            self._next += 1

    def _collect(self) -> list[WorkerUpdate]:
        """Return one update, if one is there that is not too stale."""
        for rank in range(self.work_plan.workers):
            update = self._pushed(rank)
            if update is None:
                continue
            if update.staleness <= self.store.rules.config.max_staleness:
                return [update]
            self.late += 1
            # Lease it again from the current parameters: so stale a difference would be scaled down to almost nothing.
            self._held[rank] = self._write(rank, update.unit)
        return []

    def release(self, updates: Sequence[WorkerUpdate]) -> None:
        """Free the workers whose updates were just applied, before the next commit acknowledges another's."""
        for each in updates:
            del self._held[each.rank]
            self._write(each.rank, WAIT)
