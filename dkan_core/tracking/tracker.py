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
    """Of the steps, or of the time where that is limited and will be up first; 100 only when the run has ended."""

    remaining_seconds: int


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    status: Literal["finished", "interrupted", "stopped", "failed"]
    """Interrupted: by Ctrl-C, in order; stopped: by SIGTERM or a second Ctrl-C, and little time is left."""

    metrics: Mapping[str, Any] | None = None
    """Contents of ``metrics.json``; None where the run did not end in order."""


class Tracker(ABC):
    """Is told of a run, in a thread (``background``): what it raises is shown once, and the run goes on."""

    progress_seconds: float = 0.0
    """How long to wait between two calls of ``progress``."""

    flush_seconds: float = 20.0
    """How long a run waits at its end, at most, until all is told."""

    @abstractmethod
    def started(self, run: TrackedRun) -> None:
        """Take note of a run that begins or goes on."""

    @abstractmethod
    def progress(self, progress: Progress) -> None:
        """Take note of how far it is; only the newest counts, and what came before may have been left out."""

    @abstractmethod
    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """Take note of an evaluation, as ``history.jsonl`` has it."""

    @abstractmethod
    def finished(self, end: RunEnd) -> None:
        """Take note of the end."""


class Trackers(Tracker):
    """Several trackers as one, told of everything in this order."""

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
