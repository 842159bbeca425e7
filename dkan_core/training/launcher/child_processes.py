"""The child processes of a run as their launcher sees them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from dkan_core.training.communication.messages import Channel, Message, error_of
from dkan_core.training.communication.rendezvous import PEER_LOST
from dkan_core.training.launcher.fork_server_start import ForkedProcess
from dkan_core.training.roles.process_spec import ProcessSpec

# What NCCL's watchdog writes before it ends a rank that has waited for others in vain.
NCCL_TIMEOUT = "Watchdog caught collective operation timeout"

# Last lines of a dead process's log that its error shows: enough for a traceback.
LOG_LINES_SHOWN = 40

# What to change when a process has run out of memory. A run that resumes may have more memory or another evaluation
# device; it refuses the other changes.
COMPUTING_ADVICE = (
    "more memory for this container; in a new run also --accumulate 4, fewer --workers or a smaller --batch-size"
)
MEMORY_ADVICE = {
    "evaluator": "another --eval-device such as cpu, more memory for this container, or a smaller validation split "
    "(--split of dkan prepare) for a new run",
    "server": "more memory for this container; in a new run also fewer --members, a smaller --hidden or fewer "
    "--workers",
}
"""By role; other roles get ``COMPUTING_ADVICE``."""

# Seconds. The first death is healed at once; a process that keeps dying must cost the machine next to nothing.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0


def pause_before_restart(deaths: int) -> float:
    """Return seconds to wait after so many deaths in a row.

    >>> [pause_before_restart(deaths) for deaths in (1, 2, 3, 4, 50)]
    [0.0, 0.1, 0.2, 0.4, 30.0]
    """
    return 0.0 if deaths < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(deaths - 2, 20))


class Child(ForkedProcess):
    """A running process of ours.

    Args:
        spec: What it does.
        channel: The launcher's channel to it.
        pid: Its process ID.
        report: Handle of the file that it writes its exit code to.
        log: File for its output.
        log_start: Offset in the log at which its output begins.
    """

    _report: int

    def __init__(self, spec: ProcessSpec, channel: Channel, pid: int, report: int, log: Path, log_start: int) -> None:
        super().__init__(pid, report)
        self.name = spec.name
        self.role = spec.role
        self.rank = spec.rank
        self.channel = channel
        self.log = log
        self._log_start = log_start

    def messages(self) -> Iterator[Message]:
        """Yield the messages of the process; raise the error that it reported, if any."""
        for message in self.channel.waiting():
            error = error_of(message)
            if error is not None:
                raise error
            yield message

    def end(self) -> None:
        """Kill the process if it still runs, and release all handles."""
        self.kill()
        self.wait()
        if not self.channel.closed:
            self.channel.close()
            os.close(self._report)

    def describe_death(self) -> str:
        """Return how the process ended, with the end of its log."""
        text = self._log_text()
        tail = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES_SHOWN:]) or "  (it wrote nothing)"
        return f"{self.summarize_death()}. The end of {self.log.parent.name}/{self.log.name}:\n{tail}"

    def summarize_death(self) -> str:
        """Return in a line how the process ended."""
        code, text = self.wait(), self._log_text()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        hint = ""
        advice = f"what to change: {MEMORY_ADVICE.get(self.role, COMPUTING_ADVICE)}"
        if code == PEER_LOST or NCCL_TIMEOUT in text:
            hint = ": it has lost the other ranks; one of them has died, or the network to it is cut"
        # The kernel sends SIGKILL when a container is out of memory, and leaves no other trace.
        elif code == -signal.SIGKILL:
            hint = f"; out of memory is the usual cause; {advice}"
        elif "out of memory" in text.lower() or "MemoryError" in text:
            hint = f"; {advice}"
        return f"{self.name} died ({how}{hint})"

    def _log_text(self) -> str:
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")
