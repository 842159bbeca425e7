"""Servers as processes of their own, which end with the block that started them, however it ends."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# A busy machine may take minutes for what takes seconds on an idle one.
START_SECONDS = 200.0
END_SECONDS = 10.0
LOOK_SECONDS = 0.05


class ServerError(Exception):
    """A server has not started; the message has the end of its log."""


class Server:
    """A server that was started, and is perhaps not ready yet.

    Args:
        name: What messages call it.
        process: It, the first of a group of processes.
        log: File of what it prints.
    """

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    def wait_for_line(self, pattern: str) -> str:
        """Return the first group of what the server's log has that matches, once it is there."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            # Asked before the log is read: the last lines of one that has ended are in it by then.
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found[1]
            if ended or time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(LOOK_SECONDS)


@contextmanager
def running(name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start a server, and end it and its children after the block.

    Args:
        name: What messages and the log call it.
        command: Program and arguments.
        folder: Of the log, and the server's working folder.
        env: Further variables of its environment.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C reaches this process alone, which then ends them in order.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        yield Server(name, process, log)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
