"""A plain trainer for comparison: DistributedDataParallel with gloo under torchrun, with a checkpoint every N steps.

The model, the loss, the rows and their order are those of ``dkan train``; it does not evaluate.
When started by torchrun, this file is that trainer.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training.watch import START_SECONDS, environment
from dkan_core import TrainConfig, TrainingError
from dkan_core.config import ResolvedTrainConfig, build_config
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.training.communication.process_group import LOOPBACK
from dkan_core.training.compute.flat_model import trained_parameters
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.untrained_model import untrained_model

CHECKPOINT, PROGRESS, SETTINGS = "checkpoint.pt", "progress", "settings.json"
STEP, RESTARTED_AT, FIRST_WORKER = 0, 1, 2
"""What stands where in the progress file, an array of int64."""


class Elastic:
    """A job of torchrun with two workers, killed at the end of a ``with`` block.

    Args:
        prepared: Prepared data.
        folder: For checkpoints and progress.
        config: Settings.
        every: Steps between two checkpoints.
    """

    def __init__(self, prepared: Path, folder: Path, config: TrainConfig, *, every: int) -> None:
        folder.mkdir(parents=True)
        resolved = resolve(config, read_manifest(prepared).splits["train"].rows)
        self.every, self.batch_size, self._output = every, resolved.batch_size, folder / "output"
        self._progress: np.memmap[Any, Any] = np.memmap(folder / PROGRESS, np.int64, "w+", shape=8)
        settings = {key: value for key, value in asdict(resolved).items() if value is not None}
        (folder / SETTINGS).write_text(json.dumps(settings))
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
        command = [sys.executable, *torchrun, "-m", __name__, str(prepared), str(folder), str(every)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment(OMP_NUM_THREADS="1"), start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (self.process.pid, *self.workers()):
            with suppress(ProcessLookupError):
                os.kill(number, 9)
        self.process.wait()

    def step(self) -> int:
        """Return the steps done."""
        return int(self._progress[STEP])

    def restarted_at(self) -> int:
        """Return the step of the checkpoint that the last start began from."""
        return int(self._progress[RESTARTED_AT])

    def workers(self) -> list[int]:
        """Return the numbers of the worker processes, by rank."""
        return [int(number) for number in self._progress[FIRST_WORKER : FIRST_WORKER + 2] if number]

    def wait_for_step(self, step: int) -> None:
        """Wait until so many steps are done.

        Raises:
            TrainingError: It takes too long, or the job has ended.
        """
        deadline = time.monotonic() + START_SECONDS
        while self.step() < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TrainingError(f"torchrun ended, or took too long: {self._output.read_text()[-2000:]}")
            time.sleep(0.005)


def main() -> None:
    """Train as one of torchrun's workers, from the newest checkpoint on."""
    prepared, folder, every = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group("gloo")
    rank, manifest = dist.get_rank(), read_manifest(prepared)
    config = build_config(ResolvedTrainConfig, json.loads((folder / SETTINGS).read_text()))
    progress: np.memmap[Any, Any] = np.memmap(folder / PROGRESS, np.int64, "r+", shape=8)
    progress[FIRST_WORKER + rank] = os.getpid()
    with open_split(prepared, manifest, "train") as reader:
        saved = torch.load(folder / CHECKPOINT, weights_only=True) if (folder / CHECKPOINT).exists() else None
        architecture = saved["architecture"] if saved else choose_architecture(reader, manifest, config).to_dict()
        model = untrained_model(ModelConfig.from_dict(architecture), manifest, config)
        optimizer = torch.optim.AdamW(trained_parameters(model), config.learning_rate, fused=True)
        step = 0
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            step = int(saved["step"])
        progress[RESTARTED_AT] = step
        parallel = DistributedDataParallel(_Loss(model))
        batches = SliceBatches(reader, config, rank)
        while True:
            optimizer.zero_grad()
            torch.autograd.backward(parallel(to_tensors(batches.get(step, rank), torch.device("cpu"))))
            optimizer.step()
            step += 1
            if rank == 0:
                if step % every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    _save(folder / CHECKPOINT, {**state, "architecture": architecture, "step": step})
                progress[STEP] = max(step, int(progress[STEP]))


class _Loss(torch.nn.Module):
    """The model and its loss in one forward pass, as DistributedDataParallel needs it."""

    def __init__(self, model: TabularModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits_MBL = self.model.member_logits(batch.get("numeric"), batch.get("categorical"), batch["dropout_key"])
        labels_MBL = batch["labels"].to(logits_MBL.dtype).expand_as(logits_MBL)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits_MBL, labels_MBL)


def _save(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)


if __name__ == "__main__":
    main()
