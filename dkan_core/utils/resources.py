"""What this process may use of the machine."""

import math
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

# Of version 2. Affinity does not show a quota: with as many threads as the machine has cores, a container would be
# stopped for most of each period.
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# Limit and use of the container, in versions 2 and 1 of cgroups.
CGROUP_MEMORY = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def available_cores() -> int:
    """Return the cores that affinity and the container's CPU quota leave, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
        # A quota of 1.5 cores is worth two threads: one would leave half a core idle.
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def allow_open_files(count: int) -> None:
    """Raise this process's own limit of open files to ``count``, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard < 0 else min(count, hard), hard))


def peak_resident_memory() -> int:
    """Return the bytes of memory that this process has held at most, what it shares with others among them."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kilobytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, or of its container where that is less."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    for limit, used in CGROUP_MEMORY:
        with suppress(OSError, ValueError):
            free = min(free, int(limit.read_text(encoding="ascii")) - int(used.read_text(encoding="ascii")))
    return free
