"""What stops, hangs or dies again and again is replaced, and does not end a run that gets on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core import TrainResult, train
from dkan_core.errors import TrainingError
from dkan_core.training.communication.rendezvous import PEER_LOST
from dkan_core.training.launcher import fork_server_client, liveness, supervisor
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.launcher.liveness import MAX_FAILED_STARTS, LivenessCounters, ProcessRecord
from dkan_core.training.launcher.supervisor import Supervisor
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.utils.signals import exit_once, handle_signal
from tests.training.faults import inject, slow_steps
from tests.training.processes import Background, children, wait_for_child, wait_until
from tests.training.runs import (
    CONFIG,
    ROWS,
    STEPS,
    check_nothing_lost,
    facts,
    ledger_of,
    memory_of,
    wait_for_step,
)

SPEC: dict[str, Any] = {
    **{"prepared": "", "run": "", "model": {}, "train_rows": 1, "wakeups": {}, "memory": -1},
    **{"groups": ParameterGroups(), "shape": MemoryShape(parameters=1, workers=1), "config": resolve(CONFIG, ROWS)},
}
"""Of any process, but for its role."""


@pytest.mark.slow
def test_idle_evaluator_may_be_killed_as_often_as_one_likes(
    start: Callable[..., Background], tmp_path: Path, expected: npt.NDArray[np.float32], train_rows: int
) -> None:
    """It has nothing to do between two epochs, so nothing of its own gets on; the run does."""
    done = tmp_path / "done"
    background = start(**slow_steps(tmp_path, until=done))
    kills = 2 + MAX_FAILED_STARTS
    with memory_of(background) as memory:
        evaluator = memory.liveness_index("evaluator", 0)

        def got_on(step: int, activity: int) -> bool:
            return memory.ledger.read().step > step + 10 and memory.activity_R[evaluator] > activity

        for _ in range(kills):
            wait_until(partial(got_on, memory.ledger.read().step, int(memory.activity_R[evaluator])))
            background.kill("evaluator")
        assert memory.ledger.read().step < STEPS, "the faults came too late to count"
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    assert facts(background.run)["replaced"] == {"worker": 0, "server": 0, "evaluator": kills}
    check_nothing_lost(background.run, train_rows, CONFIG, expected)


@contextmanager
def run_in_thread(rows: Path, run: Path) -> Iterator[list[TrainResult]]:
    """Train in this process; when the block is left, the run has ended."""
    results: list[TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(train(rows, run, replace(CONFIG, epochs=2))))
    thread.start()
    yield results
    thread.join()


def test_stopped_server_and_evaluator_are_replaced(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "UNRESPONSIVE_SECONDS", 2.0)
    with run_in_thread(rows, tmp_path / "run") as results:
        wait_until(lambda: (tmp_path / "run" / "history.jsonl").exists() and "server" in children(os.getpid()))
        for name in ("server", "evaluator"):
            os.kill(wait_for_child(os.getpid(), name), signal.SIGSTOP)
    replaced = results[0].metrics["training"]["replaced"]
    assert replaced["server"] >= 1 and replaced["evaluator"] >= 1 and len(results[0].history) == 2


HANG_ONCE = """
import time
def trace(frame, event, arg):
    name = frame.f_code.co_name
    if event == "call" and name in ENTRIES and not os.path.exists(MARK + name):
        open(MARK + name, "w").close()
        time.sleep(100_000)
sys.settrace(trace)
"""


def test_hung_server_and_evaluator_are_replaced(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have heartbeats, as those are a thread's matter, and they do nothing."""
    entries = {"server": "poll_heartbeats", "evaluator": "snapshots_beyond"}
    body = HANG_ONCE.replace("ENTRIES", repr(tuple(entries.values()))).replace("MARK", repr(str(tmp_path / "hung-")))
    for name, value in inject(tmp_path, body).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(liveness, "STARTING_SECONDS", 3.0)
    monkeypatch.setattr(liveness, "DEFAULT_STUCK_SECONDS", 3.0)
    monkeypatch.setattr(liveness, "STUCK_SECONDS", {})
    with run_in_thread(rows, tmp_path / "run") as results:
        pass
    replaced = results[0].metrics["training"]["replaced"]
    for role, entry in entries.items():
        assert (tmp_path / f"hung-{entry}").exists() and replaced[role] >= 1, role
    assert len(results[0].history) == 2


@pytest.mark.parametrize(("device", "is_stuck"), [("cpu", True), ("cuda:1", False)])
def test_worker_on_a_gpu_has_time_to_compile_kernels(device: str, *, is_stuck: bool) -> None:
    """Its first batch may come, or the rows be on the GPU, long after it has shown that it gets on."""
    record = ProcessRecord(ProcessSpec(role="worker", device=device, **SPEC))
    seconds = int(2 * liveness.DEFAULT_STUCK_SECONDS)
    for now in range(1, seconds):
        record.record_counters(LivenessCounters(heartbeat=now, activity=1), now)
    assert record.is_unresponsive(seconds, interrupted=False) == is_stuck
    late = liveness.GPU_STUCK_SECONDS + 2
    record.record_counters(LivenessCounters(heartbeat=seconds, activity=1), late)
    assert record.is_unresponsive(late, interrupted=False)


@dataclass
class EndedRank:
    """Stands for a rank that has ended with such a code."""

    rank: int
    code: int
    role: str = "collective-worker"
    channel: object = None

    def poll(self) -> int:
        return self.code

    def wait(self) -> int:
        return self.code

    def kill(self) -> None:
        """Do nothing: it has ended."""


@pytest.mark.parametrize(
    ("codes", "heard_of", "cause"),
    [
        ([-signal.SIGABRT, 1, PEER_LOST], 0, 1),
        ([-signal.SIGABRT, PEER_LOST, -signal.SIGKILL], 1, 2),
        ([PEER_LOST, -signal.SIGABRT], 0, 1),
        ([-signal.SIGABRT, -signal.SIGABRT], 1, 1),
        ([1, 1], 1, 1),
    ],
)
def test_rank_that_failed_is_the_cause_and_not_one_that_waited_for_it(
    codes: list[int], heard_of: int, cause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's watchdog aborts ranks that wait, as well as one whose GPU has failed."""
    monkeypatch.setattr(supervisor, "CAUSE_SECONDS", 0.1)
    ranks: list[Any] = [EndedRank(rank, code) for rank, code in enumerate(codes)]
    watch: Any = Supervisor.__new__(Supervisor)
    watch._selector = SimpleNamespace(get_map=dict)
    watch._records = {each.rank: SimpleNamespace(role=each.role, due=None, child=each) for each in ranks}
    assert watch._end_collective_workers(ranks[heard_of]) is ranks[cause]


def test_sigterm_at_the_end_of_a_run_waits_for_the_last_checkpoint() -> None:
    written: list[bool] = []

    def write_now() -> None:
        signal.raise_signal(signal.SIGTERM)
        written.append(True)

    watch: Any = Supervisor.__new__(Supervisor)
    watch._records, watch._selector = {}, SimpleNamespace(close=lambda: None)
    watch._is_over, watch._handle_messages = lambda: True, lambda _: None
    watch._children = lambda *_: [SimpleNamespace(end=lambda: None)]
    watch.checkpoint_writer = SimpleNamespace(wait=lambda: None, write_now=write_now)
    with handle_signal(signal.SIGTERM, exit_once), pytest.raises(SystemExit, match="143"):
        watch.run()
    assert written


def test_ctrl_c_ends_a_run_whose_server_and_evaluator_are_stopped(start: Callable[..., Background]) -> None:
    background = start()
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 14)
        for name in ("server", "evaluator"):
            background.kill(name, signal.SIGSTOP)
        os.kill(background.process.pid, signal.SIGINT)
    code, output = background.wait()
    assert code == 130 and facts(background.run)["ended"] == "interrupt", output
    for name in ("server", "evaluator"):
        assert f"{name} is unresponsive; killing it" in output
    assert background.history()[-1]["step"] == facts(background.run)["steps"] < STEPS


# A fork server that can begin but not fork, as with a limit on processes.
CANNOT_FORK = "import socket, sys; link = socket.socket(fileno=int(sys.argv[1])); link.sendall(b'{}\\n'); link.recv(1)"


def test_fork_server_that_cannot_fork_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(handle: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", CANNOT_FORK, str(handle)], pass_fds=(handle,))

    monkeypatch.setattr(fork_server_client, "launch_fork_server", launch)
    monkeypatch.setattr(fork_server_client, "MAX_FAILED_FORKS", 3)
    spec = ProcessSpec(role="server", **SPEC)
    with (
        ForkServer() as fork_server,
        pytest.raises(TrainingError, match=r"server cannot start: 3 attempts .*ulimit -u"),
    ):
        # Of no use to the server: it is never there.
        fork_server.spawn(replace(spec, memory=0), tmp_path / "log")


def test_advice_is_that_of_the_role_that_died(tmp_path: Path) -> None:
    advice = {
        "evaluator": "--eval-device",
        "server": "fewer --members",
        "worker": "--accumulate",
        "collective-worker": "--accumulate",
    }
    said = {}
    with ForkServer() as fork_server:
        for role in advice:
            spec = ProcessSpec(role=role, **{**SPEC, "memory": create_memory(SPEC["shape"]).handle})
            child = fork_server.spawn(spec, tmp_path / role)
            child.kill()
            # It may have been faster, and have failed: there is no data.
            (tmp_path / role).write_text("MemoryError")
            said[role] = child.describe_death()
            os.close(spec.memory)
    assert all(text in said[role] for role, text in advice.items()), said
    assert "--batch-size" not in said["evaluator"] + said["server"]


@pytest.mark.slow
def test_ctrl_c_that_reaches_every_process_is_left_to_the_launcher(
    start: Callable[..., Background], tmp_path: Path, expected: npt.NDArray[np.float32], train_rows: int
) -> None:
    """A service manager or a batch system may send SIGINT to all; none of them dies of it, even before any work."""
    done = tmp_path / "done"
    background = start(**slow_steps(tmp_path, until=done))
    with ledger_of(background) as ledger:
        wait_for_step(ledger, 2)
        wait_until(lambda: len(background.children()) == 4)
        for pid in background.children().values():
            os.kill(pid, signal.SIGINT)
        done.touch()
    code, output = background.wait()
    assert code == 0, output
    check_nothing_lost(background.run, train_rows, CONFIG, expected)
    assert not any(facts(background.run)["replaced"].values())
