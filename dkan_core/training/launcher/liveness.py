"""Liveness of a process: whether it makes progress, how often it has died, when its replacement starts.

Deaths are limited by a rate: each without progress in between makes the pause before the next start longer. None ends
the run, but for those that show that no process of that name can do its work.
"""

from dataclasses import dataclass
from typing import Self

from dkan_core.training.launcher.child_processes import Child, pause_before_restart
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SharedMemory

# A process without a heartbeat for so long is killed and replaced. A worker's rows go to another after a second, so
# that there is time for a machine that swaps.
UNRESPONSIVE_SECONDS = 30.0

# The same after Ctrl-C, when somebody waits for the end.
INTERRUPTED_UNRESPONSIVE_SECONDS = 5.0

# How long a process may take to start its work: disks may be slow, and kernels are compiled.
STARTING_SECONDS = 600.0

# A process without activity for so long, and so many times longer than ever before, is killed and replaced. The
# evaluator sorts the scores of a whole split, and writes to disks that may be slow, between two signs of activity.
STUCK_SECONDS = {"evaluator": 600.0}
DEFAULT_STUCK_SECONDS, STUCK_FACTOR = 60.0, 20

# The same on a GPU: any batch may be the first of its kind, for which kernels are compiled and compared.
GPU_STUCK_SECONDS = 600.0

# Processes of one name in a row that may be killed by a signal before any has started its work.
MAX_FAILED_STARTS = 5

# A process that keeps dying for this long without progress of the run in between ends the run: somebody pays for the
# machine.
GIVE_UP_SECONDS = 1800.0

Progress = tuple[int, ...]


@dataclass(frozen=True)
class LivenessCounters:
    """Liveness counters of a process: see ``dkan_core.training.roles.heartbeat``."""

    heartbeat: int
    activity: int

    @classmethod
    def read(cls, memory: SharedMemory, role: str, rank: int) -> Self:
        """Read those of a process."""
        index = memory.liveness_index(role, rank)
        return cls(int(memory.heartbeats_R[index]), int(memory.activity_R[index]))


class ProcessRecord:
    """A process and those before it of its name."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.name = spec.name
        self.role = spec.role
        self.rank = spec.rank
        # A rank waits so long for the others, and shows no activity meanwhile.
        waits = 2 * spec.config.exchange_timeout if spec.role == "collective-worker" else 0.0
        usual = GPU_STUCK_SECONDS if spec.device.startswith("cuda") else DEFAULT_STUCK_SECONDS
        self._stuck_seconds = max(STUCK_SECONDS.get(spec.role, usual), waits)
        self.child: Child | None = None
        self.generation = 1
        self.due: float | None = 0.0
        """When the next process is to start; None while there is one, or none is needed."""

        self.was_ready = False
        """Whether one of them has begun with its work."""

        self.first_death = ""
        self._deaths = 0
        self._dying_since = 0.0
        self._progress: Progress = ()
        self._counters = LivenessCounters(0, 0)
        self._ready = False
        self._last_seen = self._last_active = self._longest = 0.0
        self._tolerance = 1

    def record_start(self, child: Child, counters: LivenessCounters, now: float) -> None:
        """Take note of a process that has just started."""
        self.child = child
        self.due = None
        self._ready = False
        self._counters = counters
        self.reset_deadlines(now)

    def record_counters(self, counters: LivenessCounters, now: float) -> None:
        """Take note of what the process shows."""
        if counters.heartbeat != self._counters.heartbeat:
            self._last_seen = now
        if counters.activity != self._counters.activity:
            # The time before the first activity is that of starting, which has a limit of its own.
            if self._ready:
                self._longest = max(self._longest, now - self._last_active)
            self._last_active = now
            self._ready = True
            self.was_ready = True
        self._counters = counters

    def reset_deadlines(self, now: float) -> None:
        """Begin to wait again: the launcher itself did not run, so it cannot know."""
        self._last_seen = self._last_active = now

    def is_unresponsive(self, now: float, *, interrupted: bool) -> bool:
        """Return whether the process is to be killed: each one that takes its place has twice as long."""
        heartbeat_timeout = INTERRUPTED_UNRESPONSIVE_SECONDS if interrupted else UNRESPONSIVE_SECONDS
        stuck = max(self._stuck_seconds, STUCK_FACTOR * self._longest) if self._ready else STARTING_SECONDS
        unresponsive = (
            now - self._last_seen > self._tolerance * heartbeat_timeout
            or now - self._last_active > self._tolerance * stuck
        )
        if unresponsive:
            self._tolerance *= 2
            self.reset_deadlines(now)
        return unresponsive

    def record_death(self, child: Child, progress: Progress, now: float) -> None:
        """Take note of a death.

        Args:
            child: Whose: of ranks, which live and die together, the one that was the cause.
            progress: How far the run is.
            now: By the monotonic clock.
        """
        # A process of this name has got the run on since: what killed it now is taken for something new.
        if not self._deaths or (self._ready and progress != self._progress):
            self._deaths = 0
            self._dying_since = now
            # Doubled each time it was killed for being slow; progress takes that back in steps.
            self._tolerance = max(1, self._tolerance // 2)
            self.first_death = child.describe_death()
        self._deaths = self._deaths + 1
        self._progress = progress
        self.generation += 1
        self.due = now + pause_before_restart(self._deaths)

    def should_give_up(self, now: float) -> bool:
        """Return whether no process of this name will ever make progress."""
        never_started = not self.was_ready and self._deaths > MAX_FAILED_STARTS
        return never_started or (self._deaths > 1 and now - self._dying_since > GIVE_UP_SECONDS)
