"""TensorBoard: curves of loss, speed, average precision, and of what the processes spend their time on."""

import re
from collections.abc import Mapping
from typing import Any

from dkan_core.tracking.tracker import Progress, RunEnd, TrackedRun, Tracker
from dkan_core.training import breakdown
from dkan_core.utils.storage.paths import filesystem, lies_in

TENSORBOARD = "tensorboard"
"""Folder of the events, in that of the run and in that of the checkpoints."""

EVENTS = r"events\.out\.tfevents\..*"
"""Pattern of their names."""


class TensorBoardTracker(Tracker):
    """Writes events into the run's folder, and a copy beside checkpoints that lie elsewhere.

    So a run can be watched while it trains even if its folder is in a pod, or is uploaded only at its end.
    """

    def started(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = run.folder / TENSORBOARD
        self._board: Any = SummaryWriter(str(self._folder))
        self._copy = "" if lies_in(run.checkpoints, str(run.folder)) else f"{run.checkpoints}/{TENSORBOARD}"
        if self._copy and not run.is_resumed:
            _remove_events(self._copy)

    def progress(self, progress: Progress) -> None:
        self._board.add_scalar("train/loss", progress.loss, progress.step)
        self._board.add_scalar("train/rows_per_second", progress.rows_per_second, progress.step)

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        self._board.add_scalar("valid/average_precision", entry["average_precision"], entry["step"])
        if "validation_loss" in entry:
            self._board.add_scalar("valid/loss", entry["validation_loss"], entry["step"])
        self._show_times(entry["time"], entry["step"])
        self._copy_events()

    def finished(self, end: RunEnd) -> None:  # noqa: ARG002 - curves look the same however a run ends
        self._board.close()
        self._copy_events()

    def _show_times(self, time: Mapping[str, Any], step: int) -> None:
        """Show each process's shares of its time, and the bytes it has held at most."""
        for name, spent in breakdown.processes(time):
            process = name.replace(" ", "-")
            for part in breakdown.PARTS:
                if part in spent:
                    self._board.add_scalar(f"time/{process}/{part}", breakdown.share(spent, part), step)
            self._board.add_scalar(f"peak_memory/{process}", spent["peak_memory"], step)

    def _copy_events(self) -> None:
        if not self._copy:
            return
        self._board.flush()
        fs, root = filesystem(self._copy)
        fs.makedirs(root, exist_ok=True)
        for path in self._folder.iterdir():
            fs.put_file(str(path), f"{root}/{path.name}")


def _remove_events(uri: str) -> None:
    """Remove the events of an earlier run."""
    fs, root = filesystem(uri)
    fs.invalidate_cache()
    for path in fs.ls(root, detail=False) if fs.exists(root) else []:
        if re.fullmatch(EVENTS, str(path).rsplit("/", 1)[-1]):
            fs.rm_file(path)
