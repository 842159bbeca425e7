"""``train``: starts worker, server and evaluator processes, watches them, and reports.

The children are started as ``python -m``, never by importing the caller's script, so a script needs no
``__main__`` guard and a notebook works.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

from dkan_core.config import TrainConfig
from dkan_core.data.loader import open_split
from dkan_core.data.manifest import PreparedData, read_manifest
from dkan_core.errors import OutputError
from dkan_core.storage import (
    check_free,
    is_remote,
    leftovers,
    local_copy,
    local_path,
    output_error,
    remove,
    replace_remote,
    write_json,
)
from dkan_core.training.architecture import choose_architecture
from dkan_core.training.channel import Channel, channel_pair
from dkan_core.training.evaluator import MODEL_FOLDER
from dkan_core.training.job import Job
from dkan_core.training.memory import create_memory
from dkan_core.training.processes import Child, watch
from dkan_core.training.recipe import resolve, threads_per_worker
from dkan_core.training.reporting import Reporter
from dkan_core.training.step import decayed_ranges, flatten, untrained_model

METRICS, HISTORY, LOGS, TENSORBOARD = "metrics.json", "history.jsonl", "logs", "tensorboard"
OUTPUTS = (MODEL_FOLDER, HISTORY, LOGS, TENSORBOARD, METRICS)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run ended with."""

    average_precision: float
    """Validation AP of the best model; the mean over labels."""

    model: str
    """Folder of the best model: path or URI."""

    metrics: dict[str, Any]
    """What ``metrics.json`` holds."""

    history: list[dict[str, Any]]
    """One entry an evaluation."""


def train(
    prepared: str | Path, run: str | Path, config: TrainConfig | None = None, *, overwrite: bool = False
) -> TrainResult:
    """Train on a prepared data set, evaluate beside it, keep the best model by validation AP.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        run: Folder or URI for ``model/``, ``metrics.json``, ``history.jsonl`` and ``logs/``.
        config: Settings; what is None in it is chosen from the data.
        overwrite: Whether an earlier run in ``run`` may be replaced.

    Raises:
        UserError: The data, a setting or the output folder is wrong.
        TrainingError: A process died; the message has its name and traceback.
    """
    check_free(run, ours=OUTPUTS, overwrite=overwrite)
    with local_copy(prepared) as data:
        manifest = read_manifest(data)
        for split in ("train", "valid"):
            open_split(data, manifest, split).close()
        resolved = resolve(config or TrainConfig(), manifest.splits["train"].rows, len(manifest.labels))
        logger.info(
            "training: device %s, workers %d, rows a step %d, learning rate %.2g, epochs %d",
            resolved.device,
            resolved.workers,
            resolved.batch_size,
            resolved.learning_rate,
            resolved.epochs,
        )
        with _run_folder(run) as folder:
            _clear(folder)
            history = _Run(data, manifest, folder, resolved).execute()
            metrics = json.loads((folder / MODEL_FOLDER / METRICS).read_text(encoding="utf-8"))
            metrics["training"] = _training_facts(resolved, history)
            write_json(folder / METRICS, metrics)
    best = float(metrics["average_precision"])
    logger.info("best validation average precision %.4f; model in %s/%s", best, run, MODEL_FOLDER)
    return TrainResult(average_precision=best, model=f"{run}/{MODEL_FOLDER}", metrics=metrics, history=history)


@contextmanager
def _run_folder(run: str | Path) -> Iterator[Path]:
    """Yield the local folder of a run; that of a remote one is uploaded at the end, also when the run fails."""
    if not is_remote(run):
        try:
            yield local_path(run)
        except OSError as error:
            raise output_error(run, error) from error
        return
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        try:
            yield Path(folder)
        except BaseException:
            # What failed is the news; that its logs cannot be uploaded either is not.
            with suppress(OutputError):
                replace_remote(Path(folder), str(run), OUTPUTS)
            raise
        replace_remote(Path(folder), str(run), OUTPUTS)


def _clear(folder: Path) -> None:
    """Remove an earlier run, first what says that it is whole, and make the folders of a new one."""
    for name in reversed(OUTPUTS):
        for entry in (name, *leftovers(name)):
            remove(folder / entry)
    (folder / LOGS).mkdir(parents=True)


def _training_facts(config: TrainConfig, history: list[dict[str, Any]]) -> dict[str, Any]:
    last = history[-1]
    return {
        "device": config.device,
        "workers": config.workers,
        "members": config.members,
        "hidden": list(config.hidden or ()),
        "batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "epochs": config.epochs,
        "epochs_done": last["epoch"],
        "steps": last["step"],
        "seconds": last["seconds"],
        "seed": config.seed,
    }


class _Run:
    """The processes of one run."""

    def __init__(self, data: Path, manifest: PreparedData, folder: Path, config: TrainConfig) -> None:
        assert config.workers is not None
        self.data, self.manifest, self.folder, self.config = data, manifest, folder, config
        self.workers = config.workers
        with open_split(data, manifest, "train") as reader:
            self.architecture = choose_architecture(reader, manifest, config)
        model = untrained_model(self.architecture, manifest, config)
        start_P = flatten(model).numpy()
        self.decayed = tuple(decayed_ranges(model, config, manifest.splits["train"].rows))
        self.memory = create_memory(parameters=len(start_P), workers=self.workers)
        self.memory.values_P[:] = start_P

    def execute(self) -> list[dict[str, Any]]:
        """Run to the end and return the history."""
        with ExitStack() as stack:
            children = self._start(stack)
            with Reporter(self.folder, self.config) as reporter:
                watch(children, reporter)
                return reporter.history

    def _start(self, stack: ExitStack) -> list["Child"]:
        """Start every process; the stack kills what is left of them."""
        to_workers = [channel_pair() for _ in range(self.workers)]
        to_evaluator = channel_pair()
        ends = [end for pair in [*to_workers, to_evaluator] for end in pair]
        threads = threads_per_worker(self.workers) if self.config.device == "cpu" else 1
        server_peers = [pair[0] for pair in [*to_workers, to_evaluator]]
        children = [self._spawn(stack, "server", 0, server_peers, 1)]
        children.append(self._spawn(stack, "evaluator", 0, [to_evaluator[1]], 1))
        for rank, pair in enumerate(to_workers):
            children.append(self._spawn(stack, "worker", rank, [pair[1]], threads))
        for end in ends:
            end.close()
        os.close(self.memory.handle)
        return children

    def _spawn(self, stack: ExitStack, role: str, rank: int, peers: Sequence[socket], threads: int) -> "Child":
        ours, theirs = channel_pair()
        job = Job(
            role=role,
            rank=rank,
            prepared=str(self.data),
            run=str(self.folder),
            config=self.config,
            model=self.architecture.to_dict(),
            train_rows=self.manifest.splits["train"].rows,
            parameters=len(self.memory.values_P),
            decayed=self.decayed,
            memory=self.memory.handle,
            launcher=theirs.fileno(),
            peers=tuple(end.fileno() for end in peers),
            threads=threads,
        )
        child = Child(job, Channel(ours), self.folder / LOGS / f"{job.name}.log")
        stack.callback(child.end)
        theirs.close()
        return child
