"""Two "nodes" on one machine: a network namespace and a core each, a cable between them, a folder that both see."""

import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.training.processes import child_pids, children

SUBNET = "10.77.0"
PORT = 29500
RESTARTS = 6
RESTART_SECONDS = 1.0
_numbers = itertools.count()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def can_make_networks() -> str:
    """Return why there can be no namespaces here; empty where there can."""
    if shutil.which("ip") is None:
        return "needs iproute2"
    if os.geteuid() != 0:
        return "needs root"
    name = f"dkan-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"needs network namespaces: {made.stderr.strip()}"
    ip("netns", "delete", name)
    return ""


class Node:
    """One of the two.

    Args:
        index: 0 keeps the store that the ranks meet at.
        name: Of its namespace and of its end of the cable.
    """

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name

    def start(self, arguments: list[str]) -> "Ranks":
        """Start torchrun with one rank, by the environment that Kubeflow Trainer's torch runtime gives a pod."""
        cores = sorted(os.sched_getaffinity(0))
        core = cores[self.index % len(cores)]
        launcher = ["taskset", "--cpu-list", str(core), "ip", "netns", "exec", self.name, sys.executable]
        variables = {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(self.index),
            "PET_MASTER_ADDR": f"{SUBNET}.1",
            "PET_MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": self.name,
        }
        return Ranks([*launcher, "-m", "torch.distributed.run", *arguments], variables)

    def link(self, state: str) -> None:
        """Set this end of the cable up or down."""
        ip("-n", self.name, "link", "set", self.name, state)


class Ranks:
    """torchrun on one node, and what it has started."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}, start_new_session=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def ranks(self) -> list[int]:
        """Return the processes of the ranks."""
        return child_pids(self.process.pid)

    def processes(self) -> dict[str, int]:
        return {name: pid for rank in self.ranks() for name, pid in children(rank).items()}

    def wait(self, seconds: float) -> tuple[int, str]:
        """Return exit code and output."""
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code, "".join(self.lines)

    def end(self) -> None:
        """End it whatever it does: SIGTERM is passed on to the ranks, and their children end with them."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.wait(20)


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Lay a cable between two namespaces; nothing of it is left afterwards."""
    if reason := can_make_networks():
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    number = next(_numbers)
    first, second = (Node(index, f"dk{os.getpid()}{'ab'[index]}{number}") for index in range(2))
    try:
        for node in (first, second):
            ip("netns", "add", node.name)
            ip("-n", node.name, "link", "set", "lo", "up")
        ip("-n", first.name, "link", "add", first.name, "type", "veth", "peer", "name", second.name)
        ip("-n", first.name, "link", "set", second.name, "netns", second.name)
        for node in (first, second):
            ip("-n", node.name, "address", "add", f"{SUBNET}.{node.index + 1}/24", "dev", node.name)
            node.link("up")
        yield first, second
    finally:
        for node in (first, second):
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, check=False)


class Kubelet:
    """Starts torchrun on a node again as long as it ends badly, as Kubernetes does with the pods of a TrainJob."""

    def __init__(self, node: Node, arguments: list[str]) -> None:
        self.said, self._code = "", -1
        self._start = functools.partial(node.start, arguments)
        self._current = self._start()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        for _ in range(RESTARTS):
            self._code, said = self._current.wait(300)
            self.said += said
            if self._code == 0 or self._ended.wait(RESTART_SECONDS):
                return
            self._current = self._start()

    def kill_container(self) -> None:
        """Kill torchrun and its ranks at once: nothing there says good-bye."""
        for pid in (self._current.process.pid, *self._current.ranks()):
            os.kill(pid, signal.SIGKILL)

    @property
    def is_done(self) -> bool:
        """Whether it has ended well."""
        return self._code == 0

    def wait(self, seconds: float) -> int:
        """Return the last exit code."""
        self._thread.join(seconds)
        return self._code

    def end(self) -> None:
        self._ended.set()
        while self._thread.is_alive():
            self._current.end()  # also one that was being started
            self._thread.join(0.5)
