"""Checkpoints by time, of every strategy: they change nothing, and a run that is killed goes on from one."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import TrainResult, train
from tests.training.faults import ROUNDS, slow_steps
from tests.training.processes import Background, alive, wait_until
from tests.training.runs import CONFIG, check_nothing_lost, facts, final_state, same_history

pytestmark = pytest.mark.slow

ONE_EVALUATION = replace(CONFIG, epochs=1, checkpoint_seconds=0.0)
"""More than a hundred steps, and the only evaluation after the last of them."""

STRATEGIES: dict[str, dict[str, Any]] = {
    "parameter-server": {},
    "average": {"mode": "average", "sync_interval": 4, "ema_decay": 0.9},
    "allreduce": {"strategy": "allreduce"},
    "additive": {"model": "additive", "hidden": None, "pairs": "2"},
    "single": {"strategy": "single", "workers": 1},
}


def model_bytes(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def slowly(folder: Path) -> dict[str, str]:
    """Return the environment of a run that is not over before it is killed."""
    return slow_steps(folder, until=folder / "never", seconds=0.02, within=ROUNDS)


def kill_after_checkpoint(background: Background) -> None:
    """Kill a run and all of its processes once it has a checkpoint, which can only be one by time."""
    checkpoints = background.run / "checkpoints"
    wait_until(lambda: checkpoints.exists() and any(checkpoints.glob("step-*.safetensors")))
    processes = background.children()
    os.kill(background.process.pid, signal.SIGKILL)
    assert background.wait()[0] == -signal.SIGKILL, "the run was over before it was killed"
    wait_until(lambda: not any(alive(pid) for pid in processes.values()))
    assert background.evaluated() == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_run_killed_before_its_first_evaluation_resumes_to_the_same_bits(
    name: str, start: Callable[..., Background], rows: Path, train_rows: int, tmp_path: Path
) -> None:
    config = replace(ONE_EVALUATION, **STRATEGIES[name])
    calm = train(rows, tmp_path / "calm", config)
    often = replace(config, checkpoint_seconds=1e-3)
    background = start(often, **slowly(tmp_path))
    kill_after_checkpoint(background)
    resumed = train(rows, background.run, replace(often, resume="auto"))
    check_nothing_lost(background.run, train_rows, config, final_state(tmp_path / "calm"))
    assert model_bytes(background.run) == model_bytes(tmp_path / "calm")
    assert same_history(background.run, calm) and resumed.average_precision == calm.average_precision


def test_asynchronous_run_resumes_from_one_without_losing_a_row(
    start: Callable[..., Background], rows: Path, train_rows: int, tmp_path: Path
) -> None:
    config = replace(ONE_EVALUATION, mode="async", sync_interval=5, workers=3, checkpoint_seconds=1e-3)
    background = start(config, **slowly(tmp_path))
    kill_after_checkpoint(background)
    again = train(rows, background.run, replace(config, resume="auto"))
    assert again.metrics["training"]["ledger"]["rows"] == train_rows


def test_return_to_a_restore_point_does_not_depend_on_the_clock(rows: Path, tmp_path: Path) -> None:
    """Updates that are refused lead back to a state that follows from the steps, not from when a checkpoint was due."""
    diverging = replace(CONFIG, epochs=1, learning_rate=50.0, weight_decay=1.0, checkpoint_steps=50)
    results: list[TrainResult] = []
    for seconds in (0.0, 1e-3):
        run = tmp_path / str(seconds)
        results.append(train(rows, run, replace(diverging, checkpoint_seconds=seconds)))
    assert facts(tmp_path / "0.001")["ledger"] == facts(tmp_path / "0.0")["ledger"]
    assert facts(tmp_path / "0.0")["ledger"]["backoffs"] >= 1
    assert np.array_equal(final_state(tmp_path / "0.001"), final_state(tmp_path / "0.0"))
    assert model_bytes(tmp_path / "0.001") == model_bytes(tmp_path / "0.0")
