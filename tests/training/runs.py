"""A run of seconds for tests to disturb: its rows, settings and shared memory, and the proof that nothing is lost."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from dkan_core import PrepareConfig, TrainConfig, TrainResult, prepare
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.shared_memory import MemoryShape, Record, SharedMemory
from tests.training.processes import Background, link_target, wait_until

ROWS, STEPS = 8_000, 708
"""Rows in all, and the steps that ``CONFIG`` takes over those of the train split."""

CONFIG = TrainConfig(
    blend=False,
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


def write_rows(folder: Path, rows: int = ROWS) -> Path:
    """Prepare rows that take seconds to train on, with few evaluations."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + rng.normal(size=rows) > 1).astype(np.int8)
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
        yield SharedMemory(file.fileno(), MemoryShape.from_config(resolve(CONFIG, ROWS), parameters=1))


def wait_for_step(ledger: Record[Ledger], step: int) -> None:
    """Wait until a run has taken so many steps."""
    wait_until(lambda: ledger.read().step >= step)


def is_busy(background: Background, rank: int) -> bool:
    """Return whether a worker has a work unit that it has not pushed."""
    with memory_of(background) as memory:
        lease, push = memory.leases[rank].read(), memory.pushes[rank].read()
        return lease.unit >= 0 and lease.id != push.lease


def facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())["training"]
    return found


def same_history(run: Path, calm: TrainResult) -> bool:
    timed = ("seconds", "rows_per_second", "time")
    found = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [{key: entry[key] for key in entry if key not in timed} for entry in found] == [
        {key: entry[key] for key in entry if key not in timed} for entry in calm.history
    ]


def check_nothing_lost(run: Path, rows: int, config: TrainConfig, expected: npt.NDArray[np.float32]) -> None:
    """Check the ledger of a run, and that its last state begins with that of an undisturbed one, to the bit."""
    training = json.loads((run / "metrics.json").read_text())["training"]
    assert training["ended"] == "epochs" and training["ledger"]["rows"] == rows * (config.epochs or 0)
    assert training["ledger"]["refused"] == 0
    assert np.array_equal(final_state(run)[: len(expected)], expected)
