"""Snapshots of the parameters on their way to the evaluator: a ring of slots in shared memory.

Whoever writes never waits: with every slot taken, a snapshot is skipped. One slot is kept for the final one.

Shape suffixes: V parameters in a snapshot (the moving average is the second), P trained numbers.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from dkan_core.training.centre import checksum
from dkan_core.training.ledger import Ledger
from dkan_core.training.memory import SharedMemory, Snapshot
from dkan_core.training.optimizer import Float32

logger = logging.getLogger(__name__)


def newest_snapshot(memory: SharedMemory) -> Snapshot:
    """Return what was published last; an empty one where nothing was."""
    return max((record.read() for record in memory.snapshots), key=lambda snapshot: snapshot.number)


def publish(memory: SharedMemory, state_KP: Float32, ledger: Ledger, *, steps_per_epoch: int, time_is_up: bool) -> bool:
    """Hand parameters to the evaluator; tell whether there was a free slot.

    Args:
        memory: Shared memory.
        state_KP: The parameters are its first array, their moving average its fourth.
        ledger: Where the run is; with ``ended`` set the snapshot is the final one.
        steps_per_epoch: Of the run.
        time_is_up: Whether snapshots that wait may be skipped for this one.
    """
    number = newest_snapshot(memory).number + 1
    free = len(memory.snapshots) - (number - 1 - memory.evaluated.read().number)
    if free <= (0 if ledger.ended else 1):
        logger.warning("evaluation lags behind: snapshot at step %d skipped", ledger.step)
        return False
    slot = number % len(memory.snapshots)
    memory.snapshots_SVP[slot] = state_KP[::3]
    facts = ledger.facts(steps_per_epoch)
    memory.snapshots[slot].write(
        Snapshot(
            number=number,
            step=ledger.step,
            epoch=facts["epoch"],
            seconds=facts["seconds"],
            loss=facts["loss"],
            rows_per_second=facts["rows_per_second"],
            final=int(ledger.ended > 0),
            time_is_up=int(time_is_up),
            checksum=checksum(memory.snapshots_SVP[slot]),
        )
    )
    return True


def snapshots_beyond(memory: SharedMemory, done: int) -> Iterator[tuple[Snapshot, Float32]]:
    """Yield the snapshots with numbers above ``done``, in order, each with its parameters ``(V, P)``."""
    found = sorted((record.read().number, slot) for slot, record in enumerate(memory.snapshots))
    for number, slot in found:
        if number > done:
            yield memory.snapshots[slot].read(), memory.snapshots_SVP[slot]


def snapshots_after(memory: SharedMemory, after: int, until: int) -> list[tuple[Snapshot, Float32]]:
    """Return copies of the snapshots of steps above ``after`` up to ``until`` that are still whole, in order."""
    found = []
    for slot, record in enumerate(memory.snapshots):
        snapshot, values_VP = record.read(), memory.snapshots_SVP[slot].copy()
        if snapshot.number and after < snapshot.step <= until and checksum(values_VP) == snapshot.checksum:
            found.append((snapshot, values_VP))
    return sorted(found, key=lambda pair: pair[0].number)


def put_back(memory: SharedMemory, snapshot: Snapshot, parameters_VP: Float32) -> None:
    """Publish a snapshot of an earlier process again."""
    number = newest_snapshot(memory).number + 1
    slot = number % len(memory.snapshots)
    memory.snapshots_SVP[slot] = parameters_VP
    memory.snapshots[slot].write(replace(snapshot, number=number, final=0, time_is_up=0))
