"""Runs in processes of their own, and finding these, to kill them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dkan_core import TrainConfig
from dkan_core.training.launcher.fork_server import NAME
from tests import warm

UNRESPONSIVE_SECONDS = 240.0
"""After so long without anything new a test has failed: less than pytest's limit, so that it can say what it saw."""

LISTENS = "0A"
"""State of a socket in /proc/net/tcp."""

LOOPBACKS = {"0100007F", f"{'0' * 24}01000000", f"{'0' * 16}FFFF00000100007F"}
"""As /proc/net/tcp and tcp6 write 127.0.0.1, ::1 and ::ffff:127.0.0.1 on this machine's byte order."""


class Background:
    """A run in a process of its own, which begins with its imports done."""

    def __init__(self, prepared: Path, run: Path | str, config: TrainConfig, settings: Path, **env: str) -> None:
        settings.write_text(json.dumps({key: value for key, value in asdict(config).items() if value is not None}))
        words = ["train", str(prepared), "--out", str(run), "--config", str(settings)]
        self.run = Path(run)
        self.lines: list[str] = []
        self.process = warm.server().popen(words, {**os.environ, **env})
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def history(self) -> list[dict[str, Any]]:
        path = self.run / "history.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # The last one may be half there: it is being written.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def evaluated(self) -> int:
        return len(self.history())

    def children(self) -> dict[str, int]:
        return children(self.process.pid)

    def kill_fork_server(self) -> int:
        """Kill the process that the others are forked from, once it is there; return its number."""
        wait_until(lambda: fork_server(self.process.pid) is not None)
        pid = fork_server(self.process.pid)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid))
        return pid

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to one of the run's processes, once it is there, and wait until it is dead if it is killed."""
        pid = wait_for_child(self.process.pid, name)
        os.kill(pid, number)
        wait_until(lambda: number != signal.SIGKILL or not alive(pid))
        return pid

    def wait(self) -> tuple[int, str]:
        """Wait for the end, as long as now and then something happens; return exit code and output."""
        seen: object = None
        while self.process.poll() is None:
            if (signs := (len(self.lines), self.history(), self.children())) != seen:
                seen, deadline = signs, time.monotonic() + UNRESPONSIVE_SECONDS
            assert time.monotonic() < deadline, f"nothing happens: {''.join(self.lines)}"
            time.sleep(0.05)
        code = self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code, "".join(self.lines)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


def children(launcher: int) -> dict[str, int]:
    """Return name (as in the log file's) -> pid of a run's processes, without the one that they are forked from."""
    return {name: pid for name, pid in _named(launcher).items() if name != NAME}


def _named(launcher: int) -> dict[str, int]:
    found = {}
    for pid in child_pids(launcher):
        try:
            name, rest = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name.startswith("dkan ") and rest.split()[0] != "Z":
            found[name.removeprefix("dkan ")] = pid
    return found


def child_pids(parent: int) -> list[int]:
    """Return the children of a process; none where it is gone."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found


def fork_server(launcher: int) -> int | None:
    """Return the process that a run's processes are forked from, if there is one."""
    return _named(launcher).get(NAME)


def working_in(folder: Path) -> set[int]:
    """Return the processes whose working folder this is: a launcher that was started in it and all that it started."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            with suppress(OSError):
                if (entry / "cwd").samefile(folder):
                    found.add(int(entry.name))
    return found


def name_of(pid: int) -> str:
    """Return the name of a process, or an empty text where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def listening(pids: Iterable[int]) -> set[str]:
    """Return the addresses that processes listen at, as /proc/net/tcp and tcp6 write them."""
    sockets = {link_target(entry) for pid in pids for entry in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].split(":")[0])
    return found


def link_target(link: Path) -> str:
    """Return where a link points, or an empty text where it is gone."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_child(launcher: int, name: str) -> int:
    """Wait until a run has a process of a name; return its number."""
    wait_until(lambda: name in children(launcher))
    return children(launcher)[name]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something, and fail when it does not come, however slow the machine is."""
    deadline = time.monotonic() + UNRESPONSIVE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
