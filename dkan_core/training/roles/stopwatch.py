"""Where a process's time goes: seconds by part, added up in a record of shared memory that the launcher reads.

At the end of each part of its work a process says what it was; all time belongs to some part, so that the parts add up
to the time the process has run.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.loader import RowReader, SliceBatches
from dkan_core.training.breakdown import Part
from dkan_core.training.state.shared_memory import Record, SharedMemory, TimeSpent
from dkan_core.utils.resources import peak_resident_memory

DIGITS = 4
"""Of seconds in the history: a tenth of a millisecond."""
PUBLISH_SECONDS = 0.25
"""How often the record is written: that takes some 20 us, a lap 0.3 us."""


class Stopwatch:
    """Counts the seconds of one process.

    Args:
        record: Where they are added to those of earlier processes in its place; None where nobody looks.
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
        """Say that the time since the last call went into a part."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now
        if now - self._published > PUBLISH_SECONDS:
            self.publish()

    def publish(self) -> None:
        """Let the launcher see the seconds so far."""
        self._published = self._last
        if self._record is not None:
            peak = max(self._earlier_peak, self._peak_memory())
            self._record.write(TimeSpent(**self._seconds, peak_memory=peak))


class TimedBatches(SliceBatches):
    """Batches that tell a stopwatch how long they were waited for; the time before each went into computing."""

    def __init__(self, reader: RowReader, config: ResolvedTrainConfig, rank: int, stopwatch: Stopwatch) -> None:
        super().__init__(reader, config, rank)
        self.stopwatch = stopwatch

    def get(self, step: int, rank: int) -> Arrays:
        """Return the rows of a slice of a step."""
        self.stopwatch.lap("compute")
        arrays = super().get(step, rank)
        self.stopwatch.lap("feed")
        return arrays


class TimeReader:
    """The launcher's view of all processes' seconds.

    Args:
        memory: Shared memory of the run.
        has_server: Whether there is a parameter server, or its work is done by every worker.
    """

    def __init__(self, memory: SharedMemory, *, has_server: bool) -> None:
        self._memory = memory
        self._has_server = has_server
        self._since = time.perf_counter()
        self._before = self._read()

    def since_last(self) -> dict[str, Any]:
        """Return the seconds of all processes since the last call, as ``dkan_core.training.breakdown`` has them."""
        since = self._since
        before = self._before
        self._since = time.perf_counter()
        self._before = self._read()
        spent = {
            name: [
                _difference(part, earlier, later)
                for earlier, later in zip(before[name], self._before[name], strict=True)
                if later != TimeSpent()
            ]
            for name, part in self._parts().items()
        }
        single = {name: found[0] for name, found in spent.items() if name != "workers" and found}
        return {"seconds": round(self._since - since, DIGITS), "workers": spent["workers"], **single}

    def _parts(self) -> dict[str, tuple[Part, ...]]:
        """Return which parts each process has, besides "other"."""
        evaluator: dict[str, tuple[Part, ...]] = {"evaluator": ("score", "save", "wait")}
        if not self._has_server:
            return {"workers": ("feed", "compute", "exchange", "update"), **evaluator}
        return {"workers": ("feed", "compute", "exchange", "wait"), "server": ("update", "wait"), **evaluator}

    def _read(self) -> dict[str, list[TimeSpent]]:
        memory = self._memory
        records = {
            "workers": memory.worker_times,
            "server": [memory.server_time],
            "evaluator": [memory.evaluator_time],
        }
        return {name: [record.read() for record in found] for name, found in records.items()}


def _difference(parts: tuple[Part, ...], before: TimeSpent, after: TimeSpent) -> dict[str, float]:
    """Return seconds by part, their sum, the share of computing where that is a part, and the peak of memory."""
    spent: dict[str, float] = {
        part: round(max(0.0, getattr(after, part) - getattr(before, part)), DIGITS) for part in (*parts, "other")
    }
    seconds = sum(spent.values())
    utilization = (
        {"utilization": round(min(1.0, spent["compute"] / max(seconds, 1e-9)), DIGITS)} if "compute" in parts else {}
    )
    return {"seconds": round(seconds, DIGITS), **spent, **utilization, "peak_memory": after.peak_memory}
