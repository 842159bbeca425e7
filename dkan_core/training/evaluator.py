"""The evaluator process: scores snapshots on the validation split and keeps the best model on disk.

It works through the snapshots in the order they were taken and stops looking once patience is used up. So what
it calls the best does not depend on how fast it is. Only where it falls far behind, or the run's time is up, does the
newest snapshot win and the stale ones are skipped.
"""

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dkan_core.data.loader import open_split
from dkan_core.data.manifest import PreparedData, read_manifest
from dkan_core.metrics import macro_average_precision
from dkan_core.model.checkpoint import save_model
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from dkan_core.prediction import ScoredSplit, score_split
from dkan_core.training.channel import Message, inherited
from dkan_core.training.job import Job, run_child
from dkan_core.training.selection import Selection, describe_best
from dkan_core.training.step import bind

MODEL_FOLDER = "model"
MAX_BACKLOG = 16

logger = logging.getLogger(__name__)


def work(job: Job) -> None:
    """Evaluate snapshots until the final one."""
    torch.set_num_threads(job.threads)
    launcher, server = inherited(job.launcher), inherited(job.peers[0])
    evaluator = Evaluator(job)
    snapshots: deque[Message] = deque()
    while True:
        snapshots.extend(server.waiting() if snapshots else [server.receive(), *server.waiting()])
        if is_behind(snapshots):
            skipped = [snapshots.popleft() for _ in range(len(snapshots) - 1)]
            logger.warning(
                "evaluation lags behind: %d snapshots up to step %d skipped", len(skipped), skipped[-1]["step"]
            )
            for snapshot in skipped:
                server.send(done=snapshot["slot"], stop=evaluator.selection.exhausted)
        snapshot = snapshots.popleft()
        if not evaluator.selection.exhausted:
            launcher.send(kind="evaluation", **evaluator.evaluate(snapshot))
        if snapshot["final"]:
            return
        server.send(done=snapshot["slot"], stop=evaluator.selection.exhausted)


def is_behind(snapshots: Sequence[Message]) -> bool:
    """Tell whether all but the newest snapshot are to be skipped: too many wait, or the time of the run is up."""
    return len(snapshots) > MAX_BACKLOG or (len(snapshots) > 1 and bool(snapshots[-1]["time_is_up"]))


def _device(job: Job) -> torch.device:
    """Return a GPU that no worker has, else the first worker's, else the CPU."""
    assert job.config.workers is not None
    if job.config.device != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", job.config.workers if torch.cuda.device_count() > job.config.workers else 0)


class Evaluator:
    """Scores snapshots and remembers the best."""

    def __init__(self, job: Job) -> None:
        folder = Path(job.prepared)
        self.job = job
        self.prepared: PreparedData = read_manifest(folder)
        self.reader = open_split(folder, self.prepared, "valid")
        self.device = _device(job)
        self.config = ModelConfig.from_dict(job.model)
        self.model = TabularFastKAN(self.config).to(self.device).eval()
        self.memory = job.open_memory()
        self.values_P = torch.empty(job.parameters, device=self.device)
        bind(self.model, self.values_P)
        self.selection = Selection(job.config.patience)

    def evaluate(self, snapshot: Message) -> dict[str, Any]:
        """Score a snapshot, save it if it is the best, and return a line of history."""
        self.values_P.copy_(torch.from_numpy(self.memory.snapshots_SP[snapshot["slot"]]))
        scored = score_split(self.model, self.reader, self.device)
        value = macro_average_precision(scored.labels_NL, scored.log_odds_NL)
        better = self.selection.take(value)
        facts = {key: snapshot[key] for key in ("epoch", "step", "seconds", "loss", "rows_per_second")}
        if better:
            self._save(scored, facts)
        return {**facts, "average_precision": value, "best_average_precision": self.selection.best, "best": better}

    def _save(self, scored: ScoredSplit, facts: dict[str, Any]) -> None:
        calibration, metrics = describe_best(
            scored, self.prepared.labels, self.job.config, epoch=facts["epoch"], step=facts["step"]
        )
        metrics["data"] = self.prepared.fingerprint
        self.model.calibrate(*calibration)
        save_model(Path(self.job.run) / MODEL_FOLDER, self.model, self.config, self.prepared.preprocessor, metrics)
        self.model.calibrate()


if __name__ == "__main__":
    run_child(work)
