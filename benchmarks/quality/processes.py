"""A command with a limit on the CPU seconds of all its processes, enforced from outside.

``RLIMIT_CPU`` counts one process only, so the tree is summed up from ``/proc``; without it, the command itself has to
keep to the limit.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

POLL_SECONDS = 0.5
PROC = Path("/proc")


def run_limited(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, cpu_seconds: float | None, until: Path
) -> tuple[int, bool]:
    """Run a command to its end, or kill its processes when they have used ``cpu_seconds`` before ``until`` exists.

    Returns:
        The exit code, and whether the command was killed.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    killed = False
    try:
        while process.poll() is None:
            if cpu_seconds is not None and not until.exists() and tree_cpu_seconds(process.pid) > cpu_seconds:
                killed = True
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    finally:
        _kill_tree(process.pid)
        process.wait()
    return process.returncode, killed


def tree_cpu_seconds(root: int) -> float:
    """Return what a process, its descendants and the finished ones they have waited for have used."""
    processes = _processes()
    chosen = _descendants(root, {pid: parent for pid, (parent, _) in processes.items()})
    return sum(processes[pid][1] for pid in chosen if pid in processes)


def _processes() -> dict[int, tuple[int, float]]:
    """Return each process's parent and CPU seconds."""
    found: dict[int, tuple[int, float]] = {}
    if not PROC.is_dir():
        return found
    tick = os.sysconf("SC_CLK_TCK")
    for path in PROC.iterdir():
        if path.name.isdecimal():
            # the name, in brackets, may hold anything; a process may end at any time
            with suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                found[int(path.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / tick)
    return found


def _descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    chosen, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in chosen} - chosen
        chosen, grown = chosen | more, bool(more)
    return chosen


def _kill_tree(root: int) -> None:
    """Kill what is left: the descendants, and what has lost its parent but not its process group."""
    chosen = _descendants(root, {pid: parent for pid, (parent, _) in _processes().items()})
    for pid in chosen - {root}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(root, signal.SIGKILL)
