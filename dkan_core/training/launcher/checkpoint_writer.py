"""Writes a run's checkpoints from shared memory, in parallel with training: no process waits for a disk or a bucket."""

import logging
import threading
import time
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from dkan_core.errors import DkanError
from dkan_core.training.launcher.reporting import Reporter
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import read_model, save_checkpoint, write_parts
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import newest_restore_point
from dkan_core.training.state.shared_memory import CheckpointRequest, SharedMemory
from dkan_core.training.state.snapshots import snapshots_after
from dkan_core.utils.arrays import Float32
from dkan_core.utils.storage.paths import is_remote

# Largest share of the time: hashing and copying take CPU, memory bandwidth and network from training.
MAX_WRITING_SHARE = 0.05

# Longest pause after a checkpoint that could not be written, however long that took.
LONGEST_PAUSE_SECONDS = 120.0

logger = logging.getLogger(__name__)


@dataclass
class CheckpointWriter:
    """Writes one checkpoint at a time: when there is a new restore point, or after some time without one.

    Args:
        memory: Shared memory.
        reporter: Knows the evaluations so far.
        model: Folder of the best model.
        best: File of the best state.
        where: Folder or URI for the checkpoints.
        facts: What every checkpoint of the run has in common: data, architecture and settings.
        seconds: Maximum time between two checkpoints, as far as writing them allows; 0 for no limit.
        all_points: Whether each restore point is written, however long that takes.
    """

    memory: SharedMemory
    reporter: Reporter
    model: Path
    best: Path
    where: str
    facts: dict[str, Any]
    seconds: float
    _: KW_ONLY
    all_points: bool

    def __post_init__(self) -> None:
        self._brought = 0
        # The initial state needs no checkpoint: it comes from one, or no step has been taken yet.
        self._saved = max((record.read() for record in self.memory.restore_points), key=lambda ledger: ledger.version)
        self.newest = ""
        """Path or URI of the last checkpoint that was written."""

        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._writing_seconds = 0.0
        """Seconds that the last checkpoint took to write."""

        self._pauses_as_set = True
        """False once a checkpoint has taken so long that the next one had to wait for more than ``seconds``."""

    def write_if_due(self) -> None:
        """Once the last checkpoint is written, start the next one if there is a new state; else request one if due."""
        if self._thread is not None and self._thread.is_alive():
            return
        found = self._requested_state() or self._new_restore_point()
        if found is not None:
            self._begin(*found)
        elif self._is_time():
            self._request()

    def request_state(self, timeout: float) -> None:
        """Finish writing, then request a copy of the committed state and wait at most ``timeout`` seconds for it."""
        # The thread that writes a checkpoint reads the previous copy.
        self.wait()
        if not self._is_requested:
            self._request()
        deadline = time.monotonic() + timeout
        while self._is_requested and time.monotonic() < deadline:
            time.sleep(0.01)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def write_now(self) -> None:
        """Write a checkpoint of the last commit; all other processes have ended."""
        self.wait()
        ledger = self.memory.ledger.read()
        state_KP = self.memory.buffers_2KP[ledger.active_buffer]
        # Workers' own moments may be ahead of the last commit; copies hold state and moments of the same time.
        if self.memory.shape.local:
            ledger, state_KP = self._requested_state() or newest_restore_point(self.memory) or (Ledger(), state_KP)
            # The newest checkpoint may already hold the requested copy: do not replace it by an older restore point.
            if ledger.version < self._saved.version:
                return
        if ledger.step:
            self._began = time.monotonic()
            self._write(self._gather(ledger, state_KP))

    @property
    def _is_requested(self) -> bool:
        """Whether a requested copy is still to come; until then its memory must not be touched."""
        return self.memory.checkpoint_answer.read() != self.memory.checkpoint_request.read()

    def _request(self) -> None:
        number = self.memory.checkpoint_request.read().number + 1
        self.memory.checkpoint_request.write(CheckpointRequest(number=number))

    def _requested_state(self) -> tuple[Ledger, Float32] | None:
        """Return the requested copy of the state if it is newer than the last checkpoint, else None."""
        if self._is_requested:
            return None
        ledger = self.memory.checkpoint_ledger.read()
        return (ledger, self.memory.checkpoint_KP) if ledger.version > self._saved.version else None

    def _new_restore_point(self) -> tuple[Ledger, Float32] | None:
        """Return a copy of the newest restore point if it is newer than the last checkpoint, else None."""
        if not self.all_points and not self._has_passed(0.0):
            return None
        newest = max(record.read().version for record in self.memory.restore_points)
        if newest <= self._saved.version:
            return None
        # A request may stay open for good, as training that has ended answers none: leave its memory alone.
        found = newest_restore_point(self.memory, None if self._is_requested else self.memory.checkpoint_KP)
        return found if found is not None and found[0].version > self._saved.version else None

    def _is_time(self) -> bool:
        """Return whether to ask for the state between two restore points."""
        if not self.seconds or not self._has_passed(self.seconds) or self._is_requested:
            return False
        ledger = self.memory.ledger.read()
        return ledger.step > self._saved.step and not ledger.ended

    def _has_passed(self, seconds: float) -> bool:
        """Return whether the last checkpoint began ``seconds`` ago, and long enough ago for the time that it took."""
        return time.monotonic() - self._began >= max(seconds, self._writing_seconds / MAX_WRITING_SHARE)

    def _begin(self, ledger: Ledger, state_KP: Float32) -> None:
        """Write a checkpoint in a thread: a bucket may take longer than many steps."""
        self._saved = ledger
        self._began = time.monotonic()
        checkpoint = self._gather(ledger, state_KP)
        self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="dkan-checkpoint")
        self._thread.start()

    def _gather(self, ledger: Ledger, state_KP: Float32) -> Checkpoint:
        history = self.reporter.confirmed(ledger.step)
        reported = max((entry["step"] for entry in history), default=-1)
        return Checkpoint(
            **self.facts,
            ledger=ledger.with_stopped_clock(),
            state_KP=state_KP,
            history=history,
            pending=snapshots_after(self.memory, reported, ledger.step),
            model=read_model(self.model),
        )

    def _write(self, checkpoint: Checkpoint) -> None:
        what = f"checkpoint of step {checkpoint.ledger.step}"
        try:
            self.newest = save_checkpoint(self.where, checkpoint)
            what = "checkpoint of the best evaluation"
            self._bring_best()
        except DkanError as error:
            # Training continues: it does not need the checkpoint, and the next one may work.
            logger.error("%s was not written: %s", what, error)
            # Most of that time was spent waiting, which costs training nothing: limit the pause that follows.
            self._writing_seconds = min(time.monotonic() - self._began, LONGEST_PAUSE_SECONDS * MAX_WRITING_SHARE)
        else:
            self._note_duration(time.monotonic() - self._began)

    def _note_duration(self, seconds: float) -> None:
        """Record how long the last checkpoint took; log once if that delays the next ones."""
        self._writing_seconds = seconds
        pause = seconds / MAX_WRITING_SHARE
        if self._pauses_as_set and 0 < self.seconds < pause:
            self._pauses_as_set = False
            logger.info("a checkpoint took %.1f s to write: the next one by time follows after %.0f s", seconds, pause)

    def _bring_best(self) -> None:
        """Copy a new best state to the folder of the checkpoints, if it was written elsewhere."""
        if not is_remote(self.where) or not self.best.exists():
            return
        # Copy each file only once: it is as large as the state, and the best may be many evaluations old.
        written = self.best.stat().st_mtime_ns
        if written != self._brought:
            write_parts(f"{self.where}/{self.best.name}", [self.best.read_bytes()])
            self._brought = written
