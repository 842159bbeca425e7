"""Snapshots of the state on their way to the evaluator, in slots of shared memory.

Each snapshot is a state to resume from, so that a run can resume from the best one: parameters, moments, and their
ledger. The writer never waits: if every slot is taken, it skips a snapshot. One slot is kept for the final one.

Shape suffixes: P trainable parameters, K arrays of the state, with the workers' own moments; V parameters to score:
raw, and their moving average where there is one.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import checksum, copy_state
from dkan_core.training.state.shared_memory import MemoryShape, SharedMemory, Snapshot
from dkan_core.utils.arrays import Float32

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateSnapshot:
    """A snapshot, its state ``(K, P)``, and the ledger to resume with."""

    snapshot: Snapshot
    ledger: Ledger
    state_KP: Float32

    @property
    def is_whole(self) -> bool:
        """Whether the state is the one that was written."""
        return checksum(self.state_KP) == self.snapshot.checksum


def scored_values(state_KP: Float32, shape: MemoryShape) -> Float32:
    """Return the parameters of a state that are scored, ``(V, P)``: a view of its first array, and its fourth."""
    return state_KP[: shape.state : 3]


def newest_snapshot(memory: SharedMemory) -> Snapshot:
    """Return what was published last; an empty one where nothing was."""
    return max((record.read() for record in memory.snapshots), key=lambda snapshot: snapshot.number)


def publish_snapshot(memory: SharedMemory, ledger: Ledger, *, steps_per_epoch: int, time_is_up: bool) -> bool:
    """Hand the committed state to the evaluator; return whether there was a free slot.

    Args:
        memory: Shared memory; no worker is changing its own moments.
        ledger: Where the run is; with ``ended`` set the snapshot is the final one.
        steps_per_epoch: Steps of the run per epoch.
        time_is_up: Whether snapshots that wait may be skipped for this one.
    """
    number = newest_snapshot(memory).number + 1
    # Numbers say which slots are free, so that evaluator and server need no lock for them.
    free = len(memory.snapshots) - (number - 1 - memory.evaluated.read().number)
    if free <= (0 if ledger.ended else 1):
        logger.warning("evaluation lags behind: snapshot at step %d skipped", ledger.step)
        return False
    slot = _next_slot(memory)
    copy_state(memory, ledger, memory.snapshots_SKP[slot])
    # Before the record with its number, by which the evaluator finds it.
    memory.snapshot_ledgers[slot].write(replace(ledger.with_reset_counters(), published=ledger.step))
    memory.snapshots[slot].write(
        Snapshot(
            **asdict(ledger.figures(steps_per_epoch)),
            number=number,
            final=int(ledger.ended > 0),
            time_is_up=int(time_is_up),
            checksum=checksum(memory.snapshots_SKP[slot]),
        )
    )
    return True


def _next_slot(memory: SharedMemory) -> int:
    """Return the slot for the next snapshot: while the evaluator keeps up, few take turns, to save memory."""
    numbers = [number for record in memory.snapshots if (number := record.read().number)]
    used, evaluated = len(numbers), memory.evaluated.read().number
    if used < memory.shape.rotated_slots or (used < len(memory.snapshots) and min(numbers) > evaluated):
        return used
    return numbers.index(min(numbers))


def _in_slot(memory: SharedMemory, slot: int) -> StateSnapshot:
    """Return what a slot holds; its clock stands still at the moment of the snapshot."""
    snapshot = memory.snapshots[slot].read()
    ledger = memory.snapshot_ledgers[slot].read()
    # The clock is this machine's; another machine may resume from it.
    ledger = replace(ledger, used=snapshot.seconds, started=0.0, since=0.0)
    return StateSnapshot(snapshot, ledger, memory.snapshots_SKP[slot])


def snapshots_beyond(memory: SharedMemory, done: int) -> Iterator[StateSnapshot]:
    """Yield the snapshots with numbers above ``done``, in order; their states are views of shared memory."""
    found = sorted((record.read().number, slot) for slot, record in enumerate(memory.snapshots))
    for number, slot in found:
        if number > done:
            yield _in_slot(memory, slot)


def snapshots_after(memory: SharedMemory, after: int, until: int) -> list[StateSnapshot]:
    """Return copies of the snapshots of steps above ``after`` up to ``until`` that are still whole, in order.

    A server that was killed may have published a step twice; the first stands for both.
    """
    found: dict[int, StateSnapshot] = {}
    for each in snapshots_beyond(memory, 0):
        if after < each.snapshot.step <= until:
            # First copied, then checked: the slot may be written to at any moment.
            copy = replace(each, state_KP=each.state_KP.copy())
            if copy.is_whole:
                found.setdefault(each.snapshot.step, copy)
    return list(found.values())


def republish_snapshot(memory: SharedMemory, each: StateSnapshot) -> None:
    """Publish a snapshot of an earlier process again."""
    number = newest_snapshot(memory).number + 1
    slot = _next_slot(memory)
    memory.snapshots_SKP[slot] = each.state_KP
    memory.snapshot_ledgers[slot].write(each.ledger)
    memory.snapshots[slot].write(replace(each.snapshot, number=number, final=0, time_is_up=0))
