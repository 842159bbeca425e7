"""Where a process's time goes: seconds by part, added up in a record of shared memory that the launcher reads.

At the end of each part of its work a process says what it was; all time belongs to some part, so that the parts add up
to the time the process has run.
"""

import time
from collections.abc import Callable
from dataclasses import asdict

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.loading.loader import DeviceCopies, RowReader, SliceBatches
from dkan_core.training.breakdown import Part
from dkan_core.training.state.shared_memory import Record, TimeSpent
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.resources import peak_resident_memory

# How often the record is written: that takes some 20 us, a lap 0.3 us.
PUBLISH_SECONDS = 0.25


class Stopwatch:
    """Counts the seconds of one process.

    Args:
        record: Where they are added to those of earlier processes in its place; None where they are not recorded.
        peak_memory: Returns the bytes that the process has held at most.
    """

    def __init__(
        self, record: Record[TimeSpent] | None = None, peak_memory: Callable[[], int] = peak_resident_memory
    ) -> None:
        self._record = record
        self._peak_memory = peak_memory
        spent = asdict(TimeSpent() if record is None else record.read())
        self._earlier_peak: int = spent.pop("peak_memory")
        self._seconds: dict[Part, float] = spent  # type: ignore[assignment]
        self._last = self._published = time.perf_counter()

    def lap(self, part: Part) -> None:
        """Add the time since the last call to a part."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now
        if now - self._published > PUBLISH_SECONDS:
            self.publish()

    def publish(self) -> None:
        """Let the launcher see the seconds so far."""
        self._published = self._last
        if self._record is not None:
            # After a process was killed and replaced, the larger peak counts.
            peak = max(self._earlier_peak, self._peak_memory())
            self._record.write(TimeSpent(**self._seconds, peak_memory=peak))


class TimedBatches(SliceBatches):
    """Batches that tell a stopwatch how long they were waited for; the time before each went into computing."""

    def __init__(
        self,
        reader: RowReader,
        config: ResolvedTrainConfig,
        rank: int,
        stopwatch: Stopwatch,
        copies: DeviceCopies | None = None,
    ) -> None:
        super().__init__(reader, config, rank, copies)
        self.stopwatch = stopwatch

    def get(self, step: int, rank: int) -> Arrays:
        self.stopwatch.lap("compute")
        arrays = super().get(step, rank)
        self.stopwatch.lap("feed")
        return arrays
