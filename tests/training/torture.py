"""Faults at random on a running training, and the proof that nothing was lost: ``python -m tests.training.torture``."""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from dkan_core import PrepareConfig, TrainConfig, TrainResult, prepare, train
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.shared_memory import MemoryShape, Record, SharedMemory
from tests.training.processes import Background, link_target, wait_until

ROWS, STEPS = 8_000, 708
"""Rows in all, and the steps that ``CONFIG`` takes over those of the train split."""

CONFIG = TrainConfig(
    model="fastkan",
    epochs=4,
    hidden=(16,),
    workers=2,
    device="cpu",
    batch_size=32,
    learning_rate=0.01,
    dropout=0.1,
    patience=1_000_000,
)


def write_rows(folder: Path) -> Path:
    """Prepare rows that take seconds to train on, with few evaluations."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + rng.normal(size=ROWS) > 1).astype(np.int8)
    pq.write_table(pa.table({**{f"x{i}": x[:, i] for i in range(6)}, "label": y}), folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",)))
    return folder / "data"


def final_state(run: Path) -> npt.NDArray[np.float32]:
    """Return the state (parameters and moments) after a run's last step."""
    return newest_state(run / "checkpoints")


def newest_state(checkpoints: Path) -> npt.NDArray[np.float32]:
    """Return the state in the newest of a folder's checkpoints."""
    state: npt.NDArray[np.float32] = load_file(max(checkpoints.iterdir()))["state"]
    return state


@contextmanager
def ledger_of(background: Background) -> Iterator[Record[Ledger]]:
    """Look at the ledger of a run."""
    with memory_of(background) as memory:
        yield memory.ledger


@contextmanager
def memory_of(background: Background) -> Iterator[SharedMemory]:
    """Look at the records in the shared memory of a run of ``CONFIG``; they lie before the arrays, however large."""
    folder = Path(f"/proc/{background.process.pid}/fd")
    found: list[Path] = []

    def look() -> bool:
        names = [entry for entry in folder.iterdir() if entry.is_symlink()]
        found[:] = [entry for entry in names if "dkan-memory" in link_target(entry) and entry.stat().st_size]
        return bool(found)

    wait_until(look)
    with found[0].open("r+b", buffering=0) as file:
        yield SharedMemory(file.fileno(), MemoryShape.from_config(CONFIG, parameters=1))


def is_busy(background: Background, rank: int) -> bool:
    """Tell whether a worker has a work unit that it has not pushed."""
    with memory_of(background) as memory:
        lease, push = memory.leases[rank].read(), memory.pushes[rank].read()
        return lease.unit >= 0 and lease.id != push.lease


@dataclass
class Fault:
    """Something that is done to a process of a run."""

    name: str
    signal: int = signal.SIGKILL
    resume_after: float = 0.0
    """Seconds after which a stopped process goes on."""

    def strike(self, background: Background) -> bool:
        """Do it, if the process is there."""
        pid = background.children().get(self.name)
        if pid is None:
            return False
        try:
            os.kill(pid, self.signal)
            if self.signal == signal.SIGSTOP:
                time.sleep(self.resume_after)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True


def random_fault(rng: random.Random, workers: int) -> Fault:
    """Draw a fault."""
    worker = f"worker-{rng.randrange(workers)}"
    if rng.random() < 0.3:
        return Fault(worker, signal.SIGSTOP, resume_after=rng.uniform(0.2, 2.5))
    return Fault(rng.choice([worker, worker, "server", "evaluator"]))


def facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())["training"]
    return found


def same_history(run: Path, calm: TrainResult) -> bool:
    timed = ("seconds", "rows_per_second", "time")
    found = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [{key: entry[key] for key in entry if key not in timed} for entry in found] == [
        {key: entry[key] for key in entry if key not in timed} for entry in calm.history
    ]


INJECTION = """
import os, signal, sys

def after_fork():
    {body}

os.register_at_fork(after_in_child=after_fork)
"""


def inject(folder: Path, body: str) -> dict[str, str]:
    """Return the environment in which every process of a run executes ``body`` when it begins."""
    (folder / "sitecustomize.py").write_text(INJECTION.format(body=body.replace("\n", "\n    ")))
    return {"PYTHONPATH": str(folder)}


def check_nothing_lost(run: Path, rows: int, config: TrainConfig, expected: npt.NDArray[np.float32]) -> None:
    """Check the ledger of a run, and that its last state is that of an undisturbed one, to the bit."""
    training = json.loads((run / "metrics.json").read_text())["training"]
    assert training["ended"] == "epochs" and training["ledger"]["rows"] == rows * (config.epochs or 0)
    assert training["ledger"]["refused"] == 0
    assert np.array_equal(final_state(run), expected)


def main(seconds: float = 180.0, seed: int = 0) -> int:
    """Strike random faults for a while, run after run, and check each run; return how many struck."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepared = write_rows(folder)
        rows = json.loads((prepared / "manifest.json").read_text())["splits"]["train"]["rows"]
        train(prepared, folder / "calm", CONFIG)
        expected = final_state(folder / "calm")
        deadline, struck, runs = time.monotonic() + seconds, 0, 0
        while time.monotonic() < deadline:
            run = folder / f"run-{runs}"
            background = Background(prepared, run, CONFIG, folder / "settings.json")
            with ledger_of(background) as ledger:
                wait_until(lambda ledger=ledger: ledger.read().step > 10)
                while background.process.poll() is None:
                    struck += random_fault(rng, CONFIG.workers or 1).strike(background)
                    time.sleep(rng.expovariate(2.0))
            code, output = background.wait()
            assert code == 0, output
            check_nothing_lost(run, rows, CONFIG, expected)
            runs += 1
            sys.stdout.write(f"run {runs}: {struck} faults so far, nothing lost\n")
    return struck


if __name__ == "__main__":
    import typer

    typer.run(main)
