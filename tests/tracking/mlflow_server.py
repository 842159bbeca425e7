"""A real MLflow server on this machine, with its database and artifacts in a folder."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Its database is made first, which takes a minute on a busy machine.
START_SECONDS = 240.0


def require_server() -> None:
    """Skip where the client alone is installed."""
    for package in ("mlflow", "sqlalchemy", "flask"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs MLflow's server; {package} is not installed")


@contextmanager
def serve_mlflow(folder: Path) -> Iterator[str]:
    """Yield the address of a server."""
    require_server()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=folder, start_new_session=True)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _wait_until_up(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
