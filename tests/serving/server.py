"""``dkan serve`` as a process of its own, asked as its clients would."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import warm

LONG_SECONDS = 240
"""A server starts within seconds; a busy machine may take this long."""

OPTIONS = ("--grpc-port", "0", "--max-request-mb", "1")
"""Of the servers that several tests ask."""

IMPORTED = ("dkan_core.serving.serve", "dkan_core.serving.worker", "dkan_core.serving.grpc_server", "uvicorn")
"""What the command imports once it has its model: most of what starting a server costs."""


needs_kserve = pytest.mark.skipif(importlib.util.find_spec("kserve") is None, reason="needs the serve extra")


class Answer(NamedTuple):
    status: int
    content: Any


class Server:
    """A server that is ready."""

    def __init__(self, process: subprocess.Popen[str] | warm.Forked, log: Path) -> None:
        self.process = process
        self.log = log
        self.port = self._port(r"Uvicorn running on http://[\w.]+:(\d+)")

    @property
    def grpc_port(self) -> int:
        return self._port(r"gRPC on port (\d+)")

    def _port(self, pattern: str) -> int:
        return int(self.wait_for_line(pattern)[1])

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + LONG_SECONDS
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.log.read_text()):
                return match
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in:\n{self.log.read_text()}")

    def ask(self, path: str, content: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Return the answer to GET, or with content to POST."""
        data = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=LONG_SECONDS) as answer:
                return Answer(answer.status, _parsed(answer.read()))
        except urllib.error.HTTPError as error:
            return Answer(error.code, _parsed(error.read()))

    def probabilities(self, instances: list[dict[str, Any]]) -> list[dict[str, float]]:
        answer = self.ask("/v1/models/late:predict", {"instances": instances})
        assert answer.status == 200, answer
        found: list[dict[str, float]] = answer.content["predictions"]
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


@contextmanager
def serving(model: str | Path, log: Path, *options: str, cold: bool = False) -> Iterator[Server]:
    """Serve a model as "late" on a free port; a server that is ``cold`` imports everything itself."""
    words = ["serve", str(model), "--name", "late", "--host", "127.0.0.1", "--port", "0", *options]
    env = {**os.environ, "NO_COLOR": "1"}
    process: subprocess.Popen[str] | warm.Forked
    with log.open("w") as out:
        if cold:
            command = [sys.executable, "-m", "dkan_core", *words]
            process = subprocess.Popen(command, stdout=out, stderr=out, text=True, env=env)
        else:
            before = ("tests.serving.shared_counts",) if "--workers" in options else ()
            process = warm.server(*before, *IMPORTED).start(words, env, out)
    try:
        yield Server(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
