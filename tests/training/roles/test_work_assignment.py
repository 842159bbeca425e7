"""Who does which work unit, on real shared memory, with workers that are played by the test."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from dkan_core import TrainConfig
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.roles.work_assignment import AsyncAssignment, SyncAssignment, WorkAssignment
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store
from dkan_core.training.state.shared_memory import SHUTDOWN, WAIT, MemoryShape, Push, WorkerGeneration, create_memory
from dkan_core.training.state.stopwatch import Stopwatch

WORKERS = 3
P = 4
ROWS = 40
ASKED = TrainConfig(
    strategy="parameter-server", workers=WORKERS, batch_size=8, epochs=1, sync_interval=1, device="cpu", max_staleness=1
)


def store_of(mode: Literal["sync", "async"]) -> ParameterStore:
    config = resolve(replace(ASKED, mode=mode), ROWS)
    memory = create_memory(MemoryShape.from_config(config, P))
    os.close(memory.handle)
    initialize_store(memory, np.zeros(P, np.float32))
    for rank in range(WORKERS):
        memory.worker_generations[rank].write(WorkerGeneration(generation=1))
        memory.pushes[rank].write(Push(generation=1))
    return ParameterStore(memory, UpdateRules.from_config(config, ROWS, ParameterGroups()))


def serve(store: ParameterStore) -> WorkAssignment:
    """Begin to serve, as a server does whose memory may hold leases of one that was killed."""
    kind = AsyncAssignment if store.rules.config.mode == "async" else SyncAssignment
    server = Wakeup()
    server.notify()
    assignment = kind(store, server, [Wakeup() for _ in range(WORKERS)], Stopwatch())
    assert assignment.next_updates() == []
    return assignment


def next_updates(assignment: WorkAssignment) -> Sequence[WorkerUpdate]:
    assignment.wakeup.notify()
    return assignment.next_updates()


def units(store: ParameterStore) -> list[int]:
    return [record.read().unit for record in store.memory.leases]


def push(store: ParameterStore, *ranks: int) -> None:
    for rank in ranks:
        lease = store.memory.leases[rank].read()
        store.memory.pushes_WN[rank] = lease.unit
        store.memory.pushes[rank].write(Push(generation=1, lease=lease.id, loss=0.5, weight=1.0, rows=2))


def replace_worker(store: ParameterStore, rank: int) -> None:
    """Have the launcher say that another process takes a worker's place, which is not ready yet."""
    store.memory.worker_generations[rank].write(WorkerGeneration(generation=2))


def apply(store: ParameterStore, assignment: WorkAssignment, updates: Sequence[WorkerUpdate]) -> None:
    store.apply_updates(updates)
    assignment.release(updates)


def test_round_is_applied_as_a_whole_in_the_order_of_its_slices() -> None:
    store = store_of("sync")
    assignment = serve(store)
    assert units(store) == [0, 1, 2]
    push(store, 2, 0)
    found = next_updates(assignment), assignment.is_idle
    assert found == ([], False)
    push(store, 1)
    updates = next_updates(assignment)
    assert [each.unit for each in updates] == [0, 1, 2] and assignment.is_idle
    apply(store, assignment, updates)
    next_updates(assignment)
    assert units(store) == [3, 4, 5]


def test_unit_of_a_worker_that_is_gone_goes_to_a_free_one_whose_own_push_is_copied() -> None:
    store = store_of("sync")
    assignment = serve(store)
    push(store, 0)
    assert next_updates(assignment) == []
    lost = store.memory.leases[1].read()
    replace_worker(store, 1)
    next_updates(assignment)
    assert units(store) == [1, WAIT, 2] and assignment.counters == {"late": 0, "reassigned": 1}
    # What the first one thinks of too late counts for nothing.
    store.memory.pushes[1].write(Push(generation=1, lease=lost.id, loss=0.5, weight=1.0, rows=2))
    push(store, 0, 2)
    updates = next_updates(assignment)
    assert [each.array_P[0] for each in updates] == [0, 1, 2]
    assert assignment.counters == {"late": 1, "reassigned": 1}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_new_server_takes_over_the_leases_of_one_that_was_killed(mode: Literal["sync", "async"]) -> None:
    store = store_of(mode)
    serve(store)
    before = [record.read() for record in store.memory.leases]
    push(store, 1)
    assignment = serve(store) if mode == "sync" else None
    if assignment is None:
        assignment = AsyncAssignment(store, Wakeup(), [Wakeup() for _ in range(WORKERS)], Stopwatch())
        (update,) = next_updates(assignment)
        assert update.unit == 1
    assert [record.read() for record in store.memory.leases] == before and not assignment.is_idle


def test_update_that_a_commit_has_taken_in_is_not_taken_in_again_by_a_new_server() -> None:
    store = store_of("async")
    assignment = serve(store)
    push(store, 1)
    store.apply_updates(next_updates(assignment))
    serve(ParameterStore(store.memory, store.rules))
    assert units(store) == [0, 3, 2] and store.ledger.units_done == 1


def test_update_that_is_too_stale_is_computed_again_by_the_same_worker() -> None:
    store = store_of("async")
    assignment = serve(store)
    for _ in range(2):
        push(store, 1)
        apply(store, assignment, next_updates(assignment))
        assert next_updates(assignment) == []
    before = store.memory.leases[0].read()
    push(store, 0)
    assert next_updates(assignment) == [] and assignment.counters["late"] == 1
    again = store.memory.leases[0].read()
    assert (again.unit, again.units_done) == (before.unit, 2) and again.id > before.id


def test_nothing_new_is_begun_while_something_waits_until_all_is_applied() -> None:
    store = store_of("async")
    assignment = serve(store)
    assignment.may_begin = False
    for rank in (0, 1, 2, 2):  # the third update is too stale at first
        push(store, rank)
        if updates := next_updates(assignment):
            apply(store, assignment, updates)
    assert assignment.is_idle and next_updates(assignment) == [] and units(store) == [WAIT] * WORKERS
    assert store.ledger.units_done == WORKERS


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_are_shut_down_at_the_end(mode: Literal["sync", "async"]) -> None:
    store = store_of(mode)
    serve(store).close()
    assert units(store) == [SHUTDOWN] * WORKERS
