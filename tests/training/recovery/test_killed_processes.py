"""Processes of a run are killed and stopped: docs/concepts/reliability.md, as far as it heals."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core import PrepareConfig, TrainingError, TrainResult, prepare, train
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.roles import evaluator, post_step, training_loop, work_assignment
from dkan_core.training.state import parameter_store, snapshots
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.shared_memory import Record
from tests.training import chaos
from tests.training.faults import ROUNDS, inject, slow_steps
from tests.training.processes import Background, wait_until
from tests.training.runs import (
    CONFIG,
    STEPS,
    check_nothing_lost,
    facts,
    final_state,
    is_busy,
    ledger_of,
    same_history,
    wait_for_step,
)

pytestmark = pytest.mark.slow


def test_any_process_may_be_killed_again_and_again(
    start: Callable[..., Background],
    tmp_path: Path,
    calm: TrainResult,
    expected: npt.NDArray[np.float32],
    train_rows: int,
) -> None:
    done = tmp_path / "done"
    names = ["worker-0", "server", "evaluator", "worker-1", "worker-1", "server", "server", "worker-0", "evaluator"]
    background = start(**slow_steps(tmp_path, until=done, seconds=0.01))
    with ledger_of(background) as ledger:
        for count, name in enumerate(names, start=1):
            wait_for_step(ledger, STEPS // 14 * count)
            background.kill(name)
        assert ledger.read().step < STEPS, "the faults came too late to count"
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    check_nothing_lost(background.run, train_rows, CONFIG, expected)
    assert facts(background.run)["replaced"] == {"worker": 4, "server": 3, "evaluator": 2}
    assert same_history(background.run, calm)


WAIT_IN_IMPORTS = """
import time
from dkan_core.training.launcher import fork_server
import_ahead = fork_server.import_ahead
def import_slowly():
    while os.path.exists(IMPORTING):
        time.sleep(0.01)
    import_ahead()
fork_server.import_ahead = import_slowly
"""


def test_all_killed_at_once_and_then_the_process_that_they_are_forked_from(
    start: Callable[..., Background], tmp_path: Path, expected: npt.NDArray[np.float32], train_rows: int
) -> None:
    done, importing = tmp_path / "done", tmp_path / "importing"
    env = slow_steps(tmp_path, until=done)
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write(WAIT_IN_IMPORTS.replace("IMPORTING", repr(str(importing))))
    background = start(**env)
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 14)
        for name in ("worker-0", "worker-1", "server"):
            background.kill(name)
        before = ledger.read().step
        wait_until(lambda: ledger.read().step > before + STEPS // 14)
        processes = background.children()
        importing.touch()
        # The second one while it still imports; the processes live on, and are replaced once there is another.
        assert background.kill_fork_server() != background.kill_fork_server()
        assert background.children() == processes
        for name in ("server", "worker-1"):
            background.kill(name)
        importing.unlink()
        step = ledger.read().step
        wait_until(lambda: ledger.read().step > step)
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    assert facts(background.run)["replaced"] == {"worker": 3, "server": 2, "evaluator": 0}
    check_nothing_lost(background.run, train_rows, CONFIG, expected)


def test_worker_that_begins_when_the_data_were_replaced_learns_nothing_from_them(
    start: Callable[..., Background], rows: Path, tmp_path: Path, calm: TrainResult
) -> None:
    data, source = tmp_path / "data", rows.parent / "rows.parquet"
    shutil.copytree(rows, data)
    slow = slow_steps(tmp_path, until=tmp_path / "never")
    background = Background(data, tmp_path / "run", CONFIG, tmp_path / "settings.json", **slow)
    try:
        with ledger_of(background) as ledger:
            wait_until(lambda: ledger.read().step > STEPS // 14)
            prepare(source, data, PrepareConfig(label=("label",), seed=1), overwrite=True)
            background.kill("worker-1")
        code, output = background.wait()
    finally:
        background.end()
    assert code == 2 and f"error: {data}: the data changed after the run began" in output
    again = start(replace(CONFIG, resume="auto"))
    assert again.wait()[0] == 0 and same_history(again.run, calm)


def wait_for_reassignment(ledger: Record[Ledger], before: Ledger) -> None:
    """Wait until more work units than before have been taken from a worker and given to another."""
    wait_until(lambda: ledger.read().reassigned > before.reassigned)


def test_stopped_worker_loses_its_work_unit_and_its_late_push_is_refused(
    start: Callable[..., Background], tmp_path: Path, expected: npt.NDArray[np.float32], train_rows: int
) -> None:
    done = tmp_path / "done"
    background = start(**slow_steps(tmp_path, until=done, within=[Replica.compute_gradient]))
    with ledger_of(background) as ledger:
        wait_for_step(ledger, 2)
        # It is stopped again if it has just pushed, or has not seen its work unit yet: then nothing of it comes late.
        while not ledger.read().late:
            before = ledger.read()
            pid = background.kill("worker-1", signal.SIGSTOP)
            if is_busy(background, 1):
                wait_for_reassignment(ledger, before)
            os.kill(pid, signal.SIGCONT)
            wait_for_step(ledger, before.step + 3)
        assert not ledger.read().ended, "the push came too late to count"
        done.touch()
    assert background.wait()[0] == 0
    check_nothing_lost(background.run, train_rows, CONFIG, expected)
    found = facts(background.run)
    assert found["ledger"]["late"] >= 1 and found["ledger"]["reassigned"] >= 1 and not any(found["replaced"].values())


KILL_AT_EVERY_LINE = """
import functools, importlib, time
state = {}
@functools.cache
def is_meant(path):
    return os.path.basename(path) in FILES
def trace(frame, event, arg):
    # What is imported and computed elsewhere goes at its own speed.
    if not is_meant(frame.f_code.co_filename):
        return None
    if event == "line":
        state["lines"] -= 1
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        if state["lines"] < 0 and place not in state["killed"]:
            with open(KILLED, "a") as file:
                file.write(place + " ")
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
def wrap(module, names, wrapper):
    *place, name = names.split(".")
    owner = functools.reduce(getattr, place, importlib.import_module(module))
    function = getattr(owner, name)
    # A process is forked from one in between, which has executed this as well.
    if wrapper.__name__ not in getattr(function, "wrappers", ()):
        @functools.wraps(function)
        def wrapped(*arguments):
            return wrapper(function, *arguments)
        wrapped.wrappers = (*getattr(function, "wrappers", ()), wrapper.__name__)
        setattr(owner, name, wrapped)
def enter(function, *arguments):
    # Every other life is long enough to get the run on.
    with open(LIVES, "a") as file:
        file.write("+")
    state["lines"] = CALM if os.path.getsize(LIVES) % 2 else 0
    # Once: there is one such process at a time, and it dies when it adds to them.
    state["killed"] = set(open(KILLED).read().split())
    sys.settrace(trace)
    function(*arguments)
    sys.settrace(None)
    open(DONE, "w").close()
def pace(function, *arguments):
    # The run must not be over before the process has died often enough.
    if len(open(KILLED).read().split()) <= KILLS:
        time.sleep(0.02)
    return function(*arguments)
def wait(function, *arguments):
    function(*arguments)
    # The run ends with the evaluator: it waits, so that one that is killed at its last lines is replaced as well.
    while not os.path.exists(DONE):
        time.sleep(0.01)
wrap(*ENTRY, enter)
if PACED:
    wrap(*PACED, pace)
wrap("dkan_core.training.roles.evaluator", "main", wait)
"""


@dataclass(frozen=True, kw_only=True)
class KilledEverywhere:
    """A process that is killed at every line that it comes to."""

    entry: Callable[..., None]
    """What it begins its life with."""

    modules: tuple[ModuleType, ...]
    """Those whose lines count."""

    calm_lines: int
    """Lines that every other life has at least: enough to get the run on."""

    kills: int
    """It dies more often than that."""

    evaluations_per_epoch: int = 1
    paced: Callable[..., None] | None = None
    """What another process does once a step, and waits before until this one has died that often."""


KILLED_EVERYWHERE = {
    "server": KilledEverywhere(
        entry=training_loop.TrainingLoop.run,
        modules=(training_loop, post_step, work_assignment, parameter_store, snapshots),
        calm_lines=600,
        kills=80,
    ),
    # It gets on from one snapshot to the next: it has many.
    "evaluator": KilledEverywhere(
        entry=evaluator.main,
        modules=(evaluator,),
        calm_lines=400,
        kills=15,
        evaluations_per_epoch=25,
        paced=parameter_store.ParameterStore.apply_updates,
    ),
}


def module_and_name(function: Callable[..., None]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


@pytest.mark.parametrize("role", KILLED_EVERYWHERE)
def test_process_killed_at_any_point_loses_nothing(
    role: str,
    start: Callable[..., Background],
    tmp_path: Path,
    calm: TrainResult,
    expected: npt.NDArray[np.float32],
    train_rows: int,
) -> None:
    case = KILLED_EVERYWHERE[role]
    lives, killed = tmp_path / "lives", tmp_path / "killed"
    killed.touch()
    names = {
        "ENTRY": module_and_name(case.entry),
        "FILES": tuple(Path(str(module.__file__)).name for module in case.modules),
        "DONE": str(tmp_path / "done"),
        "LIVES": str(lives),
        "KILLED": str(killed),
        "CALM": case.calm_lines,
        "PACED": case.paced and module_and_name(case.paced),
        "KILLS": case.kills,
    }
    body = KILL_AT_EVERY_LINE
    for name, value in names.items():
        body = body.replace(name, repr(value))
    # Checkpoints as often as can be, so that it is killed while it copies the state for one.
    config = replace(CONFIG, evaluations_per_epoch=case.evaluations_per_epoch, checkpoint_seconds=1e-3)
    background = start(config, **inject(tmp_path, body))
    code, output = background.wait()
    assert code == 0, output
    places = killed.read_text().split()
    assert len(places) == len(set(places)) == facts(background.run)["replaced"][role]
    assert len(places) > case.kills, places
    # The average of the parameters is that of other evaluations, where there are more of them.
    same = expected if config.evaluations_per_epoch == CONFIG.evaluations_per_epoch else expected[:3]
    check_nothing_lost(background.run, train_rows, CONFIG, same)
    best = max(entry["average_precision"] for entry in background.history())
    assert SavedModel(background.run).metrics["average_precision"] == best
    assert role == "evaluator" or same_history(background.run, calm)


def test_average_ends_with_the_same_bits_whoever_takes_the_steps(
    start: Callable[..., Background], rows: Path, train_rows: int, tmp_path: Path
) -> None:
    config = replace(CONFIG, mode="average", sync_interval=5, epochs=2)
    train(rows, tmp_path / "calm", config)
    done = tmp_path / "done"
    background = start(config, **slow_steps(tmp_path, until=done, seconds=0.05))
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step >= STEPS // 28)
        # A worker that is stopped within a work unit loses it to the other; one that is killed begins it again.
        pid = background.kill("worker-1", signal.SIGSTOP)
        wait_until(lambda: ledger.read().reassigned > 0)
        os.kill(pid, signal.SIGCONT)
        for name in ("worker-0", "worker-1", "server"):
            before = ledger.read()
            background.kill(name)
            wait_for_step(ledger, before.step + STEPS // 28)
        assert not ledger.read().ended, "the faults came too late to count"
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    check_nothing_lost(background.run, train_rows, config, final_state(tmp_path / "calm"))
    assert facts(background.run)["ledger"]["reassigned"] >= 1


def test_async_loses_nothing_either(
    start: Callable[..., Background], calm: TrainResult, train_rows: int, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    config = replace(CONFIG, mode="async", sync_interval=5)
    background = start(config, **slow_steps(tmp_path, until=done, seconds=0.05))
    with ledger_of(background) as ledger:
        for count, name in enumerate(["worker-0", "server", "worker-1", "server"], start=1):
            wait_for_step(ledger, STEPS // 14 * count)
            background.kill(name)
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    found = facts(background.run)
    assert found["ledger"]["rows"] == 4 * train_rows and found["replaced"]["server"] == 2
    assert json.loads((background.run / "metrics.json").read_text())["average_precision"] > 0.9 * calm.average_precision


FAIL_IN_WORKERS = """
import torch
def fail(count):
    spec = sys._getframe(1).f_locals.get("spec")
    if spec is not None and spec.role == "worker":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
torch.set_num_threads = fail
"""


def test_workers_that_cannot_start_end_the_run_with_the_traceback_and_what_to_change(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in inject(tmp_path, FAIL_IN_WORKERS).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=r"died \(exit code 1; what to change: .*--accumulate") as caught:
        train(rows, tmp_path / "run", CONFIG)
    assert "Traceback" in str(caught.value) and "Tried to allocate" in str(caught.value)


def test_worker_that_dies_at_every_start_ends_the_run(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import torch\ntorch.set_num_threads = lambda _: os.kill(os.getpid(), signal.SIGKILL)"
    for name, value in inject(tmp_path, body).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=r"killed by signal 9; out of memory is the usual cause"):
        train(rows, tmp_path / "run", CONFIG)


def test_random_faults_lose_nothing() -> None:
    assert chaos.main(seconds=0.1, seed=1) > 0


@pytest.mark.parametrize(
    ("device", "epochs"), [("cpu", 6), pytest.param("cuda", 60, marks=pytest.mark.gpu)], ids=["cpu", "gpu"]
)
def test_process_that_trains_alone_is_killed_and_its_steps_are_taken_again(
    device: str, epochs: int, start: Callable[..., Background], rows: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, device=device, workers=None, epochs=epochs)
    train(rows, tmp_path / "calm", config)
    background = start(config, **slow_steps(tmp_path, until=tmp_path / "never", within=ROUNDS))
    with ledger_of(background) as ledger:
        for count in (1, 2):
            wait_for_step(ledger, 50 * epochs * count)
            background.kill("rank-0")
    code, output = background.wait()
    assert code == 0, output
    assert "strategy single" in output
    assert facts(background.run)["replaced"]["collective-worker"] == 2
    np.testing.assert_array_equal(final_state(background.run), final_state(tmp_path / "calm"))
