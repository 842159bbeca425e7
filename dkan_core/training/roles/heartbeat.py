"""How a process shows its launcher that it is alive and makes progress: two counters in shared memory.

A separate thread counts heartbeats, which cease while the process is stopped. The process's own work counts activity: a
process that hangs has heartbeats but no activity.
"""

import threading
import time

from dkan_core.training.state.shared_memory import SharedMemory

# A tenth of the time after which a worker's work is handed to another: a few late ones do not matter.
HEARTBEAT_SECONDS = 0.1


class Heartbeat:
    """The counters of one process; heartbeats begin at once."""

    def __init__(self, memory: SharedMemory, role: str, rank: int = 0) -> None:
        self._memory = memory
        self._index = memory.liveness_index(role, rank)
        # A daemon: a process must not live on for its heartbeat alone.
        threading.Thread(target=self._count_heartbeats, daemon=True, name="dkan-heartbeat").start()

    def _count_heartbeats(self) -> None:
        while True:
            self._memory.heartbeats_R[self._index] += 1
            time.sleep(HEARTBEAT_SECONDS)

    def record_activity(self) -> None:
        """Count activity: at every turn of the process's loop, also while it has nothing to do."""
        self._memory.activity_R[self._index] += 1
