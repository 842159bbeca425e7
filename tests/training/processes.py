"""Finding the processes of a run, to kill them."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def children(parent: int) -> dict[str, int]:
    """Return name (as in the log file's) -> pid of the run's processes that ``parent`` started."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_text().split("\0")
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        modules = [word for word in words if word.startswith("dkan_core.training.")]
        if modules and int(status[1]) == parent and status[0] != "Z":
            role = modules[0].rsplit(".", 1)[1]
            number = sum(name.startswith(role) for name in found)
            found[f"{role}-{number}" if role == "worker" else role] = int(entry.name)
    return found


def alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something, and fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def kill(pid: int, signal: int) -> None:
    """Send a signal to a process."""
    os.kill(pid, signal)
