"""Shared records are read whole or not at all, and the arrays do not overlap."""

import os
import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkan_core.training.state import shared_memory
from dkan_core.training.state.ledger import Ledger, WorkPlan, add_to_digest
from dkan_core.training.state.parameter_store import initialize_store, newest_restore_point
from dkan_core.training.state.shared_memory import (
    RECORD_BYTES,
    WAIT,
    EvaluatorProgress,
    Lease,
    MemoryShape,
    Push,
    Record,
    SharedMemory,
    create_memory,
)
from dkan_core.training.state.snapshots import (
    newest_snapshot,
    publish_snapshot,
    republish_snapshot,
    snapshots_after,
    snapshots_beyond,
)


@pytest.fixture
def memory() -> SharedMemory:
    made = create_memory(MemoryShape(parameters=1000, workers=3, average=True, local=True, pushed=3))
    os.close(made.handle)
    return made


def test_record_gives_back_what_was_written_last() -> None:
    record = Record(memoryview(bytearray(RECORD_BYTES)), Push())
    assert record.read() == Push()
    for count in range(5):
        record.write(Push(lease=count, loss=float("nan") if count == 2 else 0.5, rows=-count))
        assert record.read().lease == count


def test_reader_decodes_a_record_again_whenever_its_bytes_have_changed() -> None:
    content = bytearray(RECORD_BYTES)
    writer, reader = (Record(memoryview(content), Push()) for _ in range(2))
    for count in range(1, 4):
        writer.write(Push(lease=count))
        found = reader.read()
        assert found.lease == count and reader.read() is found
    # A copy that is being overwritten: the one before counts until it is whole again.
    newest = 3 % 2 * RECORD_BYTES // 2
    whole = content[newest]
    content[newest] ^= 1
    assert reader.read().lease == 2
    content[newest] = whole
    assert reader.read().lease == 3


@given(cut=st.integers(0, RECORD_BYTES - 1), seed=st.integers(0, 100))
def test_half_written_record_leaves_the_one_before(cut: int, seed: int) -> None:
    before, after = bytearray(RECORD_BYTES), bytearray(RECORD_BYTES)
    first, second = Push(lease=7, loss=0.25), Push(lease=8, loss=0.75)
    Record(memoryview(before), Push()).write(first)
    after[:] = before
    Record(memoryview(after), Push()).write(second)
    changed = [index for index in range(RECORD_BYTES) if before[index] != after[index]]
    written = random.Random(seed).sample(changed, min(cut, len(changed)))
    torn = bytearray(before)
    for index in written:
        torn[index] = after[index]
    found = Record(memoryview(torn), Push()).read()
    assert found == (second if len(written) == len(changed) else first)


def test_every_array_has_its_own_place(memory: SharedMemory) -> None:
    arrays = [memory.buffers_2KP, memory.pushes_WN, memory.moments_W2P, memory.restore_points_2KP, memory.checkpoint_KP]
    arrays.append(memory.snapshots_SKP)
    for number, array in enumerate(arrays, start=1):
        array[:] = number
    memory.heartbeats_R[:] = 99
    memory.activity_R[:] = 98
    memory.leases[2].write(Lease(id=5, unit=6))
    assert all((array == number).all() for number, array in enumerate(arrays, start=1))
    assert memory.ledger.read() == Ledger() and memory.leases[2].read().unit == 6
    assert memory.leases[0].read().unit == WAIT, "a worker without a lease waits"


def test_every_field_of_the_ledger_survives_the_record(memory: SharedMemory) -> None:
    values: dict[str, Any] = {
        field.name: 1.5 * index if field.type == "float" else index for index, field in enumerate(fields(Ledger))
    }
    memory.ledger.write(Ledger(**values))
    assert memory.ledger.read() == Ledger(**values)


@given(epochs=st.integers(1, 5), per_epoch=st.integers(1, 60), interval=st.integers(1, 9), workers=st.integers(1, 5))
def test_work_units_cover_each_slice_of_a_step_once(epochs: int, per_epoch: int, interval: int, workers: int) -> None:
    plan, steps = WorkPlan(epochs, per_epoch, interval, workers), epochs * per_epoch
    visited = [(step, plan.slice_of_unit(index)) for index in range(plan.count) for step in plan.steps_of_unit(index)]
    assert sorted(visited) == [(step, rank) for step in range(steps) for rank in range(workers)]
    done = [plan.step_after_units(count) for count in range(plan.count + 1)]
    assert done[0] == 0 and done[-1] == steps and done == sorted(done)
    assert all(step < steps for step in done[:-1]), "the run ends with its last work unit, not before"
    longer = replace(plan, epochs=epochs + 3)
    assert [longer.step_after_units(count) for count in range(plan.count + 1)] == done, (
        "more epochs change nothing before"
    )
    assert all(longer.steps_of_unit(index) == plan.steps_of_unit(index) for index in range(plan.count))


@given(st.permutations(range(40)), st.integers(0, 39))
def test_digest_tells_whether_each_work_unit_was_taken_once(order: list[int], twice: int) -> None:
    digest = 0
    for index in order:
        digest = add_to_digest(digest, [index])
    assert digest == add_to_digest(0, range(40)) < 2**63
    assert add_to_digest(digest, [twice]) != digest


def test_snapshots_wait_in_order_and_one_slot_is_kept_for_the_last(memory: SharedMemory) -> None:
    state = memory.buffers_2KP[0]
    slots = len(memory.snapshots)
    for step in range(1, slots):
        state[0], state[3] = step, -step
        assert publish_snapshot(memory, Ledger(step=step), steps_per_epoch=10, time_is_up=False)
    assert not publish_snapshot(memory, Ledger(step=slots), steps_per_epoch=10, time_is_up=False)
    assert publish_snapshot(memory, Ledger(step=slots + 1, ended=1), steps_per_epoch=10, time_is_up=False)
    waiting = list(snapshots_beyond(memory, 0))
    assert [each.snapshot.step for each in waiting] == [*range(1, slots), slots + 1]
    assert all((each.state_KP[0] == each.snapshot.step).all() for each in waiting[:-1])
    assert newest_snapshot(memory).final


def test_few_slots_take_turns_while_the_evaluator_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of shared memory that was once written to is never given back."""
    monkeypatch.setattr(shared_memory, "SNAPSHOT_BYTES", 20 * 12_000)
    monkeypatch.setattr(shared_memory, "ROTATED_BYTES", 5 * 12_000)
    memory = create_memory(MemoryShape(parameters=1000, workers=1))
    os.close(memory.handle)
    slots, few = len(memory.snapshots), memory.shape.rotated_slots
    assert (slots, few) == (20, 5)

    def publish(step: int) -> None:
        assert publish_snapshot(memory, Ledger(step=step), steps_per_epoch=10, time_is_up=False)

    def used() -> int:
        return sum(record.read().number > 0 for record in memory.snapshots)

    for step in range(1, 3 * slots):
        publish(step)
        memory.evaluated.write(EvaluatorProgress(number=step))
    kept = sorted(record.read().number for record in memory.snapshots)[-few:]
    assert used() == few and kept == list(range(3 * slots - few, 3 * slots)), "the newest ones are kept"
    for step in range(3 * slots, 4 * slots - 1):
        publish(step)
    assert used() == slots - 1, "one is kept for the last"
    waiting = [each.snapshot.step for each in snapshots_beyond(memory, 3 * slots - 1)]
    assert waiting == list(range(3 * slots, 4 * slots - 1)), "those that wait are not written over"


def test_damaged_snapshot_is_not_taken_for_a_whole_one(memory: SharedMemory) -> None:
    memory.buffers_2KP[0] = 1
    publish_snapshot(memory, Ledger(step=5, rows=50, digest=7), steps_per_epoch=10, time_is_up=False)
    (found,) = snapshots_after(memory, -1, 5)
    assert (found.ledger.step, found.ledger.rows, found.ledger.digest, found.ledger.published) == (5, 50, 7, 5)
    assert found.state_KP.shape == memory.restore_points_2KP[0].shape and (found.state_KP[:4] == 1).all()
    republish_snapshot(memory, found)
    memory.buffers_2KP[0, 0] = 2
    publish_snapshot(memory, Ledger(step=6), steps_per_epoch=10, time_is_up=False)
    # Of two of one step the first counts.
    assert [each.snapshot.number for each in snapshots_after(memory, -1, 6)] == [1, 3]
    assert not snapshots_after(memory, 6, 9)
    memory.snapshots_SKP[0, 0, 3] = 7
    assert [each.snapshot.number for each in snapshots_after(memory, -1, 6)] == [2, 3]


def test_restore_point_that_was_half_written_is_not_taken(memory: SharedMemory) -> None:
    initialize_store(memory, np.ones(1000, np.float32))
    memory.restore_points[1].write(Ledger(version=-1, step=9))
    found = newest_restore_point(memory)
    assert found is not None and found[0].step == 0 and (found[1][0] == 1).all()
