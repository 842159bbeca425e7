"""Whole runs of every strategy: equal to each other, and whole again after the death of a member."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkan_core import TrainConfig, TrainResult, train
from dkan_core.config.strategies import Strategy
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.state.checkpoint_file import Checkpoint
from tests.training.checkpoints import last_checkpoint
from tests.training.faults import ROUNDS, slow_steps
from tests.training.processes import LOOPBACKS, Background, alive, children, listening, wait_until, working_in

SMALL = TrainConfig(
    blend=False,
    epochs=2,
    hidden=(8,),
    members=2,
    workers=2,
    device="cpu",
    batch_size=50,
    learning_rate=0.02,
    dropout=0.3,
    binary_dropout=0.3,
)
SAME = replace(SMALL, learning_rate=0.01, seed=1)
"""Settings in which the steps do not enlarge what sums in another order round differently."""

LONG = replace(SMALL, strategy="allreduce", epochs=12, patience=1000)


@pytest.fixture(scope="module")
def reference(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return what a parameter server with two workers ends with."""
    run = tmp_path_factory.mktemp("reference") / "run"
    train(prepared, run, replace(SAME, strategy="parameter-server"))
    return last_checkpoint(run)


@pytest.mark.parametrize("strategy", ["allreduce", "ddp", "ring", "single"])
def test_every_strategy_takes_the_same_steps(
    strategy: Strategy, reference: Checkpoint, prepared: Path, tmp_path: Path
) -> None:
    workers = 1 if strategy == "single" else 2
    accumulate = 3 if strategy == "ring" else 1
    config = replace(SAME, strategy=strategy, workers=workers, accumulate=accumulate)
    result = train(prepared, tmp_path / "run", config)
    found = last_checkpoint(tmp_path / "run")
    np.testing.assert_allclose(found.state_KP[0], reference.state_KP[0], rtol=1e-3, atol=1e-4)
    assert [entry["loss"] for entry in found.history] == pytest.approx([entry["loss"] for entry in reference.history])
    assert (found.ledger.step, found.ledger.rows) == (reference.ledger.step, reference.ledger.rows)
    assert result.metrics["training"]["replaced"] == {"evaluator": 0, "collective-worker": 0}


def test_an_additive_model_is_the_same_of_one_worker_and_of_several(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    additive = replace(SMALL, model="additive", hidden=None, pairs="2", dropout=TrainConfig().dropout)
    strategies: dict[Strategy, int] = {"single": 1, "parameter-server": 2, "allreduce": 2}
    tables = {}
    for strategy, workers in strategies.items():
        result = train(prepared, tmp_path / strategy, replace(additive, strategy=strategy, workers=workers))
        trained = max(entry["average_precision"] for entry in result.history)
        assert f"gradient training alone reached {trained:.4f}" in caplog.text
        module = SavedModel(Path(result.model)).module
        assert isinstance(module, AdditiveFastKAN) and len(module.layout.pairs) == 2
        tables[strategy] = module.mean_table().detach().numpy()
    assert np.ptp(tables["single"]) > 0.1
    for strategy in ("parameter-server", "allreduce"):
        np.testing.assert_allclose(tables[strategy], tables["single"], rtol=1e-3, atol=1e-4)


def test_local_sgd_alone_is_plain_training_and_together_learns(prepared: Path, tmp_path: Path) -> None:
    config = replace(SMALL, epochs=4, clip_norm=0.5, ema_decay=0.9)
    train(prepared, tmp_path / "plain", replace(config, strategy="single", workers=1, ema_decay=0.0))
    alone = replace(config, strategy="local-sgd", workers=1, sync_interval=5, ema_decay=0.0)
    train(prepared, tmp_path / "alone", alone)
    found, expected = (last_checkpoint(tmp_path / name).state_KP for name in ("alone", "plain"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    together = train(prepared, tmp_path / "together", replace(config, strategy="local-sgd", sync_interval=3))
    assert together.average_precision > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "local-sgd", "parameter-server", "single"])
def test_launcher_killed_while_its_processes_start_leaves_none_behind(
    strategy: Strategy, prepared: Path, tmp_path: Path
) -> None:
    workers = 1 if strategy == "single" else 2
    config = replace(LONG, strategy=strategy, workers=workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        background = Background(prepared, tmp_path / "run", config, tmp_path / "settings.json")
    wait_until(lambda: "evaluator" in background.children())
    assert len(working_in(tmp_path)) > 1, "the launcher and what it has started are found by it"
    os.kill(background.process.pid, signal.SIGKILL)
    assert background.wait()[0] == -signal.SIGKILL
    wait_until(lambda: not working_in(tmp_path))
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_nothing_listens_beyond_the_loopback(prepared: Path, tmp_path: Path) -> None:
    background = Background(prepared, tmp_path / "run", replace(LONG, epochs=100_000), tmp_path / "settings.json")
    try:
        wait_until(lambda: background.evaluated() > 0)
        found = listening([background.process.pid, *background.children().values()])
    finally:
        background.end()
    assert found and found <= LOOPBACKS, found


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return what the long run ends with."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(prepared, run, LONG)
    return last_checkpoint(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rank-0", "rank-1"])
def test_killed_rank_changes_nothing(
    name: str, undisturbed: Checkpoint, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    for variable, value in slow_steps(tmp_path, until=done, within=ROUNDS).items():
        monkeypatch.setenv(variable, value)
    results: list[TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(train(prepared, tmp_path / "run", LONG)))
    thread.start()
    history = tmp_path / "run" / "history.jsonl"
    wait_until(lambda: history.exists() and len(history.read_text().splitlines()) > 2)
    os.kill(children(os.getpid())[name], signal.SIGKILL)
    done.touch()
    thread.join()
    found = last_checkpoint(tmp_path / "run")
    assert np.array_equal(found.state_KP, undisturbed.state_KP)
    # Which snapshots are scored is a matter of time: a new one takes the place of one that waits.
    scored, same = (
        {entry["step"]: entry["average_precision"] for entry in each.history} for each in (found, undisturbed)
    )
    assert max(scored) == max(same)
    assert all(scored[step] == same[step] for step in scored.keys() & same.keys())
    assert results[0].metrics["training"]["replaced"] == {"evaluator": 0, "collective-worker": 1}


@pytest.mark.slow
def test_ranks_that_die_at_once_are_replaced_together(prepared: Path, tmp_path: Path) -> None:
    """The launcher hears of both in one turn, and has ended the second when it comes to it."""
    done = tmp_path / "done"
    slow = slow_steps(tmp_path, until=done, within=ROUNDS)
    background = Background(prepared, tmp_path / "run", LONG, tmp_path / "settings.json", **slow)
    wait_until(lambda: background.evaluated() > 0)
    ranks = [pid for name, pid in background.children().items() if name.startswith("rank-")]
    assert len(ranks) == 2
    os.kill(background.process.pid, signal.SIGSTOP)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, ranks)))
    os.kill(background.process.pid, signal.SIGCONT)
    done.touch()
    code, output = background.wait()
    assert code == 0, output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["training"]["replaced"]["collective-worker"] == 1
