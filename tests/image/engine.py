"""A container engine for the tests marked ``image``: the one that answers, or one that is started and stopped here."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 60
STOP_SECONDS = 60


class NoEngineError(Exception):
    """There is no engine here, and none can be started; the message says why."""


def docker(*arguments: object, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the client; whether that went well is for the caller to judge."""
    command = ["docker", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def docker_output(*arguments: object, seconds: float = 120) -> str:
    """Run the client, which must succeed; return what it printed."""
    done = docker(*arguments, seconds=seconds)
    assert done.returncode == 0, f"docker {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise NoEngineError(f"not installed: {', '.join(missing)}; tests/image/install installs them as root")


def answers() -> bool:
    return docker("version", "--format", "{{.Server.Version}}", seconds=30).returncode == 0


@contextmanager
def engine() -> Iterator[str]:
    """Make ``docker`` talk to an engine; yield whose. One that was started here ends here, with all it held."""
    need("docker")
    if answers():
        yield "the engine that was there"
        return
    if os.geteuid() != 0:
        raise NoEngineError("no container engine answers, and only root can start one")
    need("dockerd", "setpriv", "unshare")
    # A short path: the name of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="dkan-engine-"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        try:
            with daemon(folder):
                yield "an engine of its own"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def daemon(folder: Path) -> Iterator[None]:
    """Run dockerd on ``folder``. It makes no bridge and no firewall rules, so it leaves none behind."""
    options = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "docker.pid"]
    options += ["--host", f"unix://{folder}/docker.sock", "--iptables=false", "--bridge=none", "--oom-score-adjust=0"]
    log = folder / "dockerd.log"
    with log.open("wb") as output:
        # It ends with the tests, also where these are killed, and what it has mounted with it; Ctrl-C is theirs alone.
        frame = ["setpriv", "--pdeathsig=TERM", "unshare", "--mount", "--propagation=slave"]
        command = [*frame, "dockerd", *map(str, options)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoEngineError(f"dockerd did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=STOP_SECONDS)
