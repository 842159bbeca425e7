"""How a fork server begins: forked ahead from a command that has done nothing yet, and from nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from dkan_core import TrainConfig, train
from tests import warm

COUNT_IMPORTS = """
import os, sys
class Counting:
    def find_spec(self, name, *_):
        if name == "torch":
            with open({counted!r}, "a") as file:
                file.write(f"{{os.getpid()}} ")
sys.meta_path.insert(0, Counting())
"""


def test_run_of_the_command_imports_torch_once_and_ends_as_one_from_python(prepared: Path, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    (tmp_path / "sitecustomize.py").write_text(COUNT_IMPORTS.format(counted=str(counted)))
    words = ["train", str(prepared), "--out", str(tmp_path / "run"), "--epochs=1", "--hidden=4", "--no-blend"]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-m", "dkan_core", *words, "--batch-size=64", "--device=cpu", "--workers=2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(counted.read_text().split()) == 1, process.stderr
    assert {path.name for path in (tmp_path / "run/logs").iterdir()} == {
        *("evaluator.log", "server.log", "train.log", "worker-0.log", "worker-1.log")
    }
    config = TrainConfig(blend=False, epochs=1, hidden=(4,), batch_size=64, device="cpu", workers=2)
    result = train(prepared, tmp_path / "run-from-python", config)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run/model", Path(result.model)))
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def test_command_that_measures_imports_torch_once_also_where_the_system_removes_its_children(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    (tmp_path / "sitecustomize.py").write_text(COUNT_IMPORTS.format(counted=str(counted)))
    options = "bench sync --workers=2 --size=64KB --repeats=1 --rounds=1 --device=cpu"
    command = f'trap "" CHLD; exec "$0" -m dkan_core {options}'
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    process = subprocess.run(["bash", "-c", command, sys.executable], env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert len(counted.read_text().split()) == 1


# Of a process that has imported torch and done nothing with it: whether it forks, what it forked, and what is left.
CODE = """
import os, sys, threading, torch
from dkan_core.training.launcher import fork_server_start
{before}
with fork_server_start.fork_ahead():
    first = fork_server_start.take_forked() if {is_taken} else None
    if first:
        process, link = first
        assert b"ready" in link.recv(100) and os.getpgid(process._pid) != os.getpgid(0)
        link.close()
        process.wait()
        assert process.poll() == 0
children = open(f"/proc/self/task/{{os.getpid()}}/children").read()
sys.exit(7 if first else 3 if not children else 1)
"""
KNOWN = "fork_server_start.has_torch = lambda: False"


@pytest.mark.parametrize(
    ("before", "is_taken", "code"),
    [
        pytest.param(KNOWN, True, 7, id="nothing was done"),
        pytest.param(KNOWN, False, 3, id="no run takes it"),
        pytest.param("", True, 3, id="torch was imported before"),
        pytest.param(
            f"{KNOWN}; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            True,
            3,
            id="another thread",
        ),
        pytest.param(f"{KNOWN}; os.fork = lambda: os.open('/dev/full/x', 0)", True, 3, id="no process can be had"),
        pytest.param(f"{KNOWN}; torch.set_num_threads(2); torch.ones(10**6).exp()", True, 3, id="torch computed"),
    ],
)
def test_only_a_process_that_has_done_nothing_forks(before: str, is_taken: bool, code: int) -> None:
    done = warm.server().run(["-c", CODE.format(before=before, is_taken=is_taken)])
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [("SIGTERM", "exit_once", "SystemExit"), ("SIGINT", "signal.default_int_handler", "KeyboardInterrupt")],
)
def test_signal_during_the_fork_ends_the_command(number: str, handler: str, raised: str, hook: str) -> None:
    before = f"""
import signal
from dkan_core.utils.signals import exit_once
signal.signal(signal.{number}, {handler})
os.register_at_fork({hook}=lambda: signal.raise_signal(signal.{number}))
{KNOWN}
try:
    with fork_server_start.fork_ahead():
        os._exit(1)
except {raised}:
    sys.exit(0 if not open(f"/proc/self/task/{{os.getpid()}}/children").read() else 2)
"""
    done = warm.server().run(["-c", CODE.format(before=before, is_taken=False)])
    assert done.returncode == 0, done.stderr


def test_fork_server_of_a_caller_without_stderr_writes_to_no_file_of_that_number(tmp_path: Path) -> None:
    # What it imports ahead is no matter here.
    (tmp_path / "sitecustomize.py").write_text("import importlib; importlib.import_module = lambda name: None")
    code = """
import os, socket, sys
from dkan_core.training.launcher.fork_server_start import launch_fork_server
os.close(2)
sys.stderr = None
theirs, ours = socket.socketpair()
assert theirs.fileno() == 2
process = launch_fork_server(2)
theirs.close()
ready = ours.recv(100)
stderr = os.readlink(f"/proc/{process.pid}/fd/2")
ours.close()
process.wait()
sys.exit(0 if b"ready" in ready and stderr == os.devnull else 1)
"""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)
