"""CPU cores, memory and open files available to this process."""

import math
import os
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Group:
    """Paths of a control group's files, for one version of control groups."""

    quota: tuple[str, ...]
    """Microseconds of CPU time per period, and the period, in one file or in two."""

    limit: str
    used: str
    """Bytes of memory."""

    statistics: str
    cache: tuple[str, ...]
    """Bytes of the page cache, which is freed when memory is needed."""


VERSIONS = (
    _Group(("cpu.max",), "memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file")),
    _Group(
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def available_cores() -> int:
    """Return the cores that affinity and the container's CPU quota leave, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in VERSIONS:
        # Affinity does not show a quota: with as many threads as the machine has cores, the container would be
        # paused for most of each period. "max" and -1 mean no quota.
        with suppress(OSError, ValueError):
            quota, period = " ".join((CGROUP / name).read_text(encoding="ascii") for name in group.quota).split()
            # Rounded up: with a quota of 1.5 cores, a single thread would leave half a core idle.
            if int(quota) > 0:
                cores = max(1, min(cores, math.ceil(int(quota) / int(period))))
    return cores


def allow_open_files(count: int) -> None:
    """Raise this process's own limit of open files to ``count``, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard < 0 else min(count, hard), hard))


def peak_resident_memory() -> int:
    """Return the largest resident memory of this process so far in bytes, including shared memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kilobytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def available_memory() -> int:
    """Return the bytes that this process may still take: the machine's, or its container's if these are fewer."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    for group in VERSIONS:
        with suppress(OSError, ValueError):
            limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in (group.limit, group.used))
            lines = (CGROUP / group.statistics).read_text(encoding="ascii").splitlines()
            cached = sum(
                int(line.split()[1]) for line in lines if line.startswith(tuple(f"{name} " for name in group.cache))
            )
            free = min(free, limit - used + cached)
    return free
