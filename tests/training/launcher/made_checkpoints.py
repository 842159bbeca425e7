"""Small checkpoints, made without a run."""

from dataclasses import replace
from typing import Any

import numpy as np

from dkan_core.model.model_folder import MODEL_FILES
from dkan_core.training.state.checkpoint_file import Checkpoint, run_facts
from dkan_core.training.state.ledger import Ledger, add_to_digest
from dkan_core.training.state.shared_memory import Snapshot
from dkan_core.training.state.snapshots import StateSnapshot
from tests.settings import resolved

ROWS, DATA = 100, "f" * 64
CONFIG = resolved(ROWS, epochs=200, batch_size=10, workers=1, hidden=(8,), learning_rate=0.1, resume="auto")
MODEL = {name: name.encode() for name in MODEL_FILES}


def evaluation(step: int, value: float = 0.5) -> dict[str, Any]:
    return {
        "epoch": step / 10,
        "step": step,
        "seconds": 0.1 * step,
        "loss": 0.3,
        "rows_per_second": 1000.0,
        "average_precision": value,
        "best_average_precision": value,
        "best": True,
    }


def ledger_at(step: int) -> Ledger:
    digest = add_to_digest(0, range(step))
    return Ledger(step=step, units_done=step, next_unit=step, rows=10 * step, digest=digest, used=3.5)


def waiting_at(step: int) -> StateSnapshot:
    state = np.random.default_rng(step).normal(size=(3, 500)).astype(np.float32)
    return StateSnapshot(Snapshot(number=step + 1, step=step), ledger_at(step), state)


def checkpoint_of(step: int, **changes: Any) -> Checkpoint:
    state = np.random.default_rng(step).normal(size=(3, 500)).astype(np.float32)
    made = Checkpoint(
        **run_facts(DATA, {"hidden": [8]}, CONFIG),
        ledger=ledger_at(step),
        state_KP=state,
        history=[evaluation(0)],
        pending=[waiting_at(step)],
        model=MODEL,
    )
    return replace(made, **changes)
