"""Interface of trackers, which follow a run from outside, and what is reported to them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dkan_core.config import ResolvedTrainConfig


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Facts about a run at its start."""

    name: str
    """Its folder or URI, as the user gave it."""

    folder: Path
    """Its folder on this machine."""

    checkpoints: str
    """Folder or URI of its checkpoints: what is there survives this machine."""

    config: ResolvedTrainConfig
    data: str
    """Fingerprint of the prepared data."""

    steps: int
    """Optimizer steps of all epochs."""

    step: int = 0
    """The step that the run resumes from."""

    is_resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    step: int
    epoch: float
    loss: float
    """Mean training loss since the last evaluation."""

    rows_per_second: float
    percentage: int
    """Share of the steps, or of the time limit if that will be reached first; 100 only when the run has ended."""

    remaining_seconds: int


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    status: Literal["finished", "interrupted", "stopped", "failed"]
    """Interrupted: by Ctrl-C, in order; stopped: by SIGTERM or a second Ctrl-C, and little time is left."""

    metrics: Mapping[str, Any] | None = None
    """Contents of ``metrics.json``; None where the run did not end in order."""


class Tracker(ABC):
    """Follows a run, in a thread (``background``). Its exceptions are shown once and do not stop the run."""

    progress_seconds: float = 0.0
    """Seconds between two calls of ``progress``."""

    flush_seconds: float = 20.0
    """Longest time in seconds that a run waits at its end until everything is sent."""

    @abstractmethod
    def started(self, run: TrackedRun) -> None:
        """Record that a run begins or continues."""

    @abstractmethod
    def progress(self, progress: Progress) -> None:
        """Record the progress; only the newest matters, and earlier calls may have been left out."""

    @abstractmethod
    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """Record an evaluation, as ``history.jsonl`` has it."""

    @abstractmethod
    def finished(self, end: RunEnd) -> None:
        """Record the end."""


class Trackers(Tracker):
    """Several trackers as one, called in this order."""

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = tuple(trackers)

    def started(self, run: TrackedRun) -> None:
        for tracker in self._trackers:
            tracker.started(run)

    def progress(self, progress: Progress) -> None:
        for tracker in self._trackers:
            tracker.progress(progress)

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.evaluation(entry)

    def finished(self, end: RunEnd) -> None:
        for tracker in self._trackers:
            tracker.finished(end)
