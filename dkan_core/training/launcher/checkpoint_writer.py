"""Writes a run's checkpoints from shared memory, in parallel with training: no process waits for a disk or a bucket."""

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np

from dkan_core.errors import DkanError
from dkan_core.training.launcher.checkpoints import read_model, save_checkpoint, write_parts
from dkan_core.training.launcher.reporting import Reporter
from dkan_core.training.state.adamw import Float32
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import newest_restore_point
from dkan_core.training.state.shared_memory import SharedMemory
from dkan_core.training.state.snapshots import snapshots_after
from dkan_core.utils.storage.paths import is_remote

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes a checkpoint when there is a new restore point, one at a time.

    Args:
        memory: Shared memory.
        reporter: Knows the evaluations so far.
        model: Folder of the best model.
        best: File of the best state.
        where: Folder or URI for the checkpoints.
        facts: What every checkpoint of the run has in common: data, architecture and settings.
    """

    def __init__(
        self, memory: SharedMemory, reporter: Reporter, model: Path, best: Path, where: str, facts: dict[str, Any]
    ) -> None:
        self.memory = memory
        self.reporter = reporter
        self.model = model
        self.where = where
        self.facts = facts
        self.best = best
        self._brought = 0
        # What a run begins with is in the checkpoint that it resumes from, or nothing yet.
        self._saved = max(record.read().version for record in memory.restore_points)
        self.newest = ""
        """Path or URI of the last checkpoint that was written."""

        self._thread: threading.Thread | None = None
        self._copy_KP = np.empty_like(memory.restore_points_2KP[0])

    def write_if_due(self) -> None:
        """Begin to write a checkpoint if there is something new, and the last one is written."""
        newest = max(record.read().version for record in self.memory.restore_points)
        if newest <= self._saved or (self._thread is not None and self._thread.is_alive()):
            return
        restore_point = newest_restore_point(self.memory, self._copy_KP)
        if restore_point is not None and restore_point[0].version > self._saved:
            self._saved = restore_point[0].version
            checkpoint = self._gather(*restore_point)
            # In a thread: a bucket may take longer than many steps.
            self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="dkan-checkpoint")
            self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def write_now(self) -> None:
        """Write a checkpoint of the last commit; all other processes have ended."""
        self.wait()
        ledger = self.memory.ledger.read()
        restore_point = newest_restore_point(self.memory)
        # Workers' own moments may be ahead of the last commit: a restore point has both of one moment.
        if self.memory.shape.local:
            if restore_point is None:
                return
            ledger, state_KP = restore_point
        else:
            state_KP = self.memory.buffers_2KP[ledger.active_buffer]
        if ledger.step:
            self._write(self._gather(ledger, state_KP))

    def _gather(self, ledger: Ledger, state_KP: Float32) -> Checkpoint:
        history = [entry for entry in self.reporter.confirmed if entry["step"] <= ledger.step]
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
        try:
            self.newest = save_checkpoint(self.where, checkpoint)
            self._bring_best()
        except DkanError as error:
            # Training continues: it does not need the checkpoint, and the next one may work.
            logger.error("no checkpoint of step %d: %s", checkpoint.ledger.step, error)

    def _bring_best(self) -> None:
        """Copy the best state to where the checkpoints are, if that is another place and it is new."""
        if not is_remote(self.where) or not self.best.exists():
            return
        # Once per file: it is as large as the state, and the best may be many evaluations ago.
        written = self.best.stat().st_mtime_ns
        if written != self._brought:
            write_parts(f"{self.where}/{self.best.name}", [self.best.read_bytes()])
            self._brought = written
