"""``train``: starts worker, server and evaluator processes, watches them, and reports.

The children are started as ``python -m``, never by importing the caller's script, so a script needs no
``__main__`` guard and a notebook works.
"""

import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import IO, Any

import torch

import dkan_core
from dkan_core import errors
from dkan_core.config import TrainConfig
from dkan_core.data.loader import open_split
from dkan_core.data.manifest import PreparedData, read_manifest
from dkan_core.errors import TrainingError
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from dkan_core.storage import check_free, is_remote, local_copy, local_path, remove, upload_folder, write_json
from dkan_core.training.channel import Channel, channel_pair
from dkan_core.training.evaluator import MODEL_FOLDER
from dkan_core.training.job import PEER_LOST_EXIT_CODE, Job
from dkan_core.training.memory import create_memory
from dkan_core.training.recipe import resolve, threads_per_worker
from dkan_core.training.reporting import Reporter
from dkan_core.training.step import decayed_ranges, flatten

METRICS, HISTORY, LOGS, TENSORBOARD = "metrics.json", "history.jsonl", "logs", "tensorboard"
OUTPUTS = (MODEL_FOLDER, HISTORY, LOGS, TENSORBOARD, METRICS)
LOG_LINES_SHOWN = 40

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
    with local_copy(prepared) as data, _run_folder(run) as folder:
        manifest = read_manifest(data)
        for split in ("train", "valid"):
            open_split(data, manifest, split).close()
        resolved = resolve(config or TrainConfig(), manifest.splits["train"].rows)
        for name in (METRICS, *OUTPUTS):
            remove(folder / name)
        (folder / LOGS).mkdir(parents=True)
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
        yield local_path(run)
        return
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        try:
            yield Path(folder)
        finally:
            upload_folder(Path(folder), str(run), last=METRICS)


def _training_facts(config: TrainConfig, history: list[dict[str, Any]]) -> dict[str, Any]:
    last = history[-1]
    return {
        "device": config.device,
        "workers": config.workers,
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
        self.architecture = ModelConfig.for_data(manifest, config)
        torch.manual_seed(config.seed)
        model = TabularFastKAN(self.architecture)
        start_P = flatten(model).numpy()
        self.decayed = tuple(decayed_ranges(model))
        self.memory = create_memory(parameters=len(start_P), workers=self.workers)
        self.memory.values_P[:] = start_P

    def execute(self) -> list[dict[str, Any]]:
        """Run to the end and return the history."""
        with ExitStack() as stack:
            children = self._start(stack)
            with Reporter(self.folder, self.config) as reporter:
                _watch(children, reporter)
                return reporter.history

    def _start(self, stack: ExitStack) -> list["_Child"]:
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

    def _spawn(self, stack: ExitStack, role: str, rank: int, peers: Sequence[socket], threads: int) -> "_Child":
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
        child = _Child(job, Channel(ours), self.folder / LOGS / f"{job.name}.log")
        stack.callback(child.end)
        theirs.close()
        return child


class _Child:
    """A running process of ours."""

    def __init__(self, job: Job, channel: Channel, log: Path) -> None:
        self.name, self.channel, self.log = job.name, channel, log
        package = str(Path(dkan_core.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"dkan_core.training.{job.role}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=job.handles(),
                env={
                    "OMP_WAIT_POLICY": "passive",
                    **os.environ,
                    "PYTHONPATH": path,
                    "OMP_NUM_THREADS": str(job.threads),
                },
            )
        stdin: IO[bytes] | None = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(job.to_json().encode())
            stdin.close()
        except BrokenPipeError:
            logger.debug("%s ended before it read its job", self.name)

    def end(self) -> None:
        """Kill the process if it still runs, and let go of everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.channel.close()


def _watch(children: Sequence[_Child], reporter: Reporter) -> None:
    """Pass messages to the reporter until all children have ended.

    Raises:
        UserError: One found the data or the disk wrong.
        TrainingError: One died; of several, the one that did not just follow another.
    """
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.channel, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                for message in child.channel.waiting():
                    if message["kind"] == "user_error":
                        raise getattr(errors, message["error"])(message["text"])
                    reporter.take(message)
                if child.channel.lost:
                    selector.unregister(child.channel)
                    if child.process.wait() != 0:
                        raise TrainingError(_describe_death(children))


def _describe_death(children: Sequence[_Child]) -> str:
    """Name the process that died of itself, with the end of its log; the others follow within a moment."""
    for child in children:
        try:
            child.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            logger.debug("%s still runs", child.name)
    dead = [child for child in children if child.process.poll() not in (None, 0)]
    first = min(dead, key=lambda child: child.process.returncode == PEER_LOST_EXIT_CODE)
    code = first.process.returncode
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    lines = first.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    tail = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
    hint = "; out of memory is the usual cause" if code == -9 else ""
    return f"{first.name} died ({how}{hint}). The end of {first.log}:\n{tail}"
