"""What a run has done so far, and the work units that its work is cut into.

A work unit is the part of ``interval`` consecutive global batches that falls to one worker. Work units are numbered:
round by round, and within a round by slice. A work unit has the same rows, whichever worker does it.
"""

import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from dkan_core.training.state.endings import ENDINGS


@dataclass(frozen=True, kw_only=True)
class TrainingFigures:
    """What training itself contributes to an evaluation in the history: ``HistoryEntry`` describes the fields."""

    # A line of the history begins with it (``history.BEGINNING``).
    epoch: float = 0.0
    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    rows_per_second: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """One commit of the parameter server; it stands in shared memory and names the active buffer of the state."""

    version: int = 0
    """Commits so far."""

    active_buffer: int = 0
    """Which of the two copies of the state is meant."""

    step: int = 0
    """Global batches done."""

    units_done: int = 0
    """Work units done: aggregated, or refused because they were not finite."""

    digest: int = 0
    """Sum of ``unit_digest`` over these, modulo 2**63: a proof that each was taken once."""

    next_unit: int = 0
    """First work unit that was not taken when this was written."""

    rows: int = 0
    """Rows in the work units done."""

    refused: int = 0
    """Updates refused because they were not finite."""

    refused_in_a_row: int = 0
    backoffs: int = 0
    """How often the learning rate was halved after too many of these."""

    late: int = 0
    """Pushes refused because their work unit had been handed to another worker."""

    reassigned: int = 0
    """Work units handed to another worker than the one that had them."""

    used: float = 0.0
    """Seconds of training before this launch, of a run that was resumed."""

    started: float = 0.0
    """When the first step of this launch was done, by the machine's monotonic clock, in seconds; 0 before."""

    since: float = 0.0
    """When loss and rows began to be counted, by the same clock."""

    since_rows: int = 0
    since_loss: float = 0.0
    since_weight: float = 0.0

    published: int = 0
    """Step of the last snapshot."""

    ended: int = 0
    """Why no further step follows, as an index of ``ENDINGS``."""

    acked_lease: int = 0
    """The lease that this commit took in, where one commit takes one."""

    checksum: int = 0
    """CRC-32 of the state that belongs to a restore point; 0 elsewhere."""

    def with_update(self, *, loss: float, weight: float, rows: int) -> Self:
        """Return the ledger with one gradient more counted: its mean loss, the weight of that, and its rows."""
        return replace(
            self,
            rows=self.rows + rows,
            since_rows=self.since_rows + rows,
            since_loss=self.since_loss + loss * weight,
            since_weight=self.since_weight + weight,
        )

    def with_running_clock(self) -> Self:
        """Return the ledger with its clock running, from now on unless it already does."""
        # From the first step on: startup is not training time.
        now = time.monotonic()
        return self if self.started else replace(self, started=now, since=now, since_rows=0)

    def with_reset_counters(self) -> Self:
        """Return the ledger with loss and speed counted from now on."""
        since = time.monotonic() if self.started else 0.0
        return replace(self, since=since, since_rows=0, since_loss=0.0, since_weight=0.0)

    @property
    def seconds(self) -> float:
        """Time of training: since the first step of this launch, and before it."""
        return self.used + (time.monotonic() - self.started if self.started else 0.0)

    def with_stopped_clock(self) -> Self:
        """Return the ledger with its clock standing still: what a checkpoint holds."""
        return replace(self, used=self.seconds, started=0.0, since=0.0)

    @property
    def ending(self) -> str:
        """Why no further step follows, one of ``ENDINGS``."""
        return ENDINGS[self.ended]

    def with_end(self, ending: str) -> Self:
        """Return the ledger of a run that ends now; the last evaluation is not training time.

        Args:
            ending: Why, one of ``ENDINGS``.
        """
        return replace(self, ended=ENDINGS.index(ending), used=self.seconds, started=0.0)

    def figures(self, steps_per_epoch: int) -> TrainingFigures:
        """Return how far the run is, and how training has gone since the last snapshot."""
        return TrainingFigures(
            epoch=self.step / steps_per_epoch,
            step=self.step,
            seconds=self.seconds,
            loss=self.since_loss / max(self.since_weight, 1e-30),
            rows_per_second=self.since_rows / max(1e-9, time.monotonic() - self.since) if self.since else 0.0,
        )


@dataclass(frozen=True)
class WorkPlan:
    """How a run's work is cut up.

    The last work unit of an epoch ends with the epoch, so that more epochs change no work unit before them.

    Args:
        epochs: Epochs of the run.
        steps_per_epoch: Global batches of each.
        interval: Global batches of a work unit.
        workers: Slices of each.
    """

    epochs: int
    steps_per_epoch: int
    interval: int
    workers: int

    @property
    def sync_rounds_per_epoch(self) -> int:
        """Work units of an epoch that fall to one worker."""
        return -(-self.steps_per_epoch // self.interval)

    @property
    def count(self) -> int:
        """Number of work units."""
        return self.epochs * self.sync_rounds_per_epoch * self.workers

    def slice_of_unit(self, unit: int) -> int:
        """Return the slice of a work unit, which is the rank of the worker that it falls to."""
        return unit % self.workers

    def steps_of_unit(self, unit: int) -> range:
        """Return the global batches of a work unit.

        >>> [WorkPlan(2, 10, 4, 2).steps_of_unit(index) for index in (4, 5, 6)]
        [range(8, 10), range(8, 10), range(10, 14)]
        """
        epoch, round_index = divmod(unit // self.workers, self.sync_rounds_per_epoch)
        first = round_index * self.interval
        before = epoch * self.steps_per_epoch
        return range(before + first, before + min(first + self.interval, self.steps_per_epoch))

    def step_after_units(self, units: int) -> int:
        """Return how many global batches are done after so many work units; with a round half done, its first half.

        >>> [WorkPlan(2, 10, 4, 2).step_after_units(count) for count in (0, 1, 2, 3, 5, 6, 8)]
        [0, 2, 4, 6, 9, 10, 14]
        """
        # Where units are applied one by one, those of a round count for their share of its steps.
        round_steps = self.steps_of_unit(units)
        return round_steps.start + len(round_steps) * (units % self.workers) // self.workers


def unit_digest(unit: int) -> int:
    """Return a number that stands for a work unit in the ledger's digest."""
    # 63 bits, as many as a record holds without a sign. They are summed: an exclusive or would not notice a unit taken
    # twice.
    text = unit.to_bytes(8, "little")
    return zlib.crc32(text) << 31 | zlib.crc32(text, 1) >> 1


def add_to_digest(digest: int, units: Iterable[int]) -> int:
    """Return a digest with more work units in it; their order does not matter.

    >>> add_to_digest(add_to_digest(0, [2]), [0, 1]) == add_to_digest(0, range(3))
    True
    """
    return (digest + sum(map(unit_digest, units))) % (1 << 63)
