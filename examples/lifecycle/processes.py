"""Servers as separate processes, which always end with the block that started them."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# What takes seconds on an idle machine may take minutes on a busy one.
START_SECONDS = 200.0
END_SECONDS = 10.0
POLL_SECONDS = 0.05


class ServerError(Exception):
    """A server did not start; the message has the end of its log."""


class Server:
    """A server that was started, and may not be ready yet.

    Args:
        name: Name in messages.
        process: Its process, the leader of a process group.
        log: File of its output.
    """

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    def wait_for_line(self, pattern: str) -> str:
        """Wait until a line of the log matches, and return the first group of the match."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            # Checked before reading the log, which then has the last lines of a server that has ended.
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found[1]
            if ended or time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_SECONDS)


@contextmanager
def running(name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start a server, and end it and its children after the block.

    Args:
        name: Name in messages and of the log.
        command: Program and arguments.
        folder: Folder of the log, and working directory of the server.
        env: Additional environment variables.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        # In its own session: Ctrl-C reaches only this process, which then ends the servers in order.
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
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
