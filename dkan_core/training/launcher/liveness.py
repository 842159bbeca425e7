"""Liveness of a process: whether it makes progress, how often it has died, when its replacement starts.

Each death without progress since the one before lengthens the pause before the next start. A death ends the run only if
it shows that no process of that name can do its work.
"""

from dataclasses import dataclass
from typing import Self

from dkan_core.training.launcher.child_processes import Child, pause_before_restart
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SharedMemory

# A process without a heartbeat for this long is killed and replaced: long enough for a machine that swaps, as another
# worker takes over its rows after a second.
UNRESPONSIVE_SECONDS = 30.0

# The same after Ctrl-C, when the user waits for the end.
INTERRUPTED_UNRESPONSIVE_SECONDS = 5.0

# How long a process may take to start its work: disks may be slow, and kernels are compiled.
STARTING_SECONDS = 600.0

# A process is killed and replaced after this long without activity, if that is also ``STUCK_FACTOR`` times its longest
# time without activity before. The evaluator sorts the scores of a whole split, and writes to disks that may be slow,
# between two signs of activity.
STUCK_SECONDS = {"evaluator": 600.0}
DEFAULT_STUCK_SECONDS, STUCK_FACTOR = 60.0, 20

# The same on a GPU: any batch may be the first of its kind, for which kernels are compiled and compared.
GPU_STUCK_SECONDS = 600.0

# Processes of one name in a row that may be killed by a signal before any has started its work.
MAX_FAILED_STARTS = 5

# The run ends if a process keeps dying for this long while the run makes no progress: the machine costs money.
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
    """The current process of a name, and what is known of the earlier ones."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.name = spec.name
        self.role = spec.role
        self.rank = spec.rank
        # While a rank waits for the others, up to the exchange timeout, it shows no activity.
        waits = 2 * spec.config.exchange_timeout if spec.role == "collective-worker" else 0.0
        usual = GPU_STUCK_SECONDS if spec.device.startswith("cuda") else DEFAULT_STUCK_SECONDS
        self._stuck_seconds = max(STUCK_SECONDS.get(spec.role, usual), waits)
        self.child: Child | None = None
        self.generation = 1
        self.due: float | None = 0.0
        """When the next process is to start; None while there is one, or none is needed."""

        self.was_ready = False
        """Whether any process of this name has started its work."""

        self.first_death = ""
        self._deaths = 0
        self._dying_since = 0.0
        self._progress: Progress = ()
        self._counters = LivenessCounters(0, 0)
        self._ready = False
        self._last_seen = self._last_active = self._longest = 0.0
        self._tolerance = 1

    def record_start(self, child: Child, counters: LivenessCounters, now: float) -> None:
        """Record the start of a process."""
        self.child = child
        self.due = None
        self._ready = False
        self._counters = counters
        self.reset_deadlines(now)

    def record_counters(self, counters: LivenessCounters, now: float) -> None:
        """Record heartbeats and activity of the process."""
        if counters.heartbeat != self._counters.heartbeat:
            self._last_seen = now
        if counters.activity != self._counters.activity:
            # The time before the first activity is startup, which has its own limit.
            if self._ready:
                self._longest = max(self._longest, now - self._last_active)
            self._last_active = now
            self._ready = True
            self.was_ready = True
        self._counters = counters

    def reset_deadlines(self, now: float) -> None:
        """Restart both timeouts, as when the launcher itself did not run and may have missed signs of life."""
        self._last_seen = self._last_active = now

    def is_unresponsive(self, now: float, *, interrupted: bool) -> bool:
        """Return whether to kill the process; the time that is allowed then doubles for its replacement."""
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
        """Record a death.

        Args:
            child: The process that died; of ranks, which live and die together, the one that was the cause.
            progress: How far the run is.
            now: By the monotonic clock.
        """
        # The first death, or the first since a process of this name let the run progress: count it as a new problem.
        if not self._deaths or (self._ready and progress != self._progress):
            self._deaths = 0
            self._dying_since = now
            # Each kill of a slow process doubles the tolerance; progress halves it again.
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
