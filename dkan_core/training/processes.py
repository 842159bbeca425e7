"""The child processes of a run as their launcher sees them."""

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import dkan_core
from dkan_core.errors import TrainingError
from dkan_core.training.channel import Channel, Message, PeerLostError, channel_pair
from dkan_core.training.job import Job
from dkan_core.training.meeting import LOST_PARTNER
from dkan_core.training.memory import anonymous_file

LOG_LINES_SHOWN = 40

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Settings of glibc: arrays are freed and wanted again every step, and fresh pages are slow. The first is the largest
that every version takes."""

OUT_OF_MEMORY = (
    "what to change: a smaller --batch-size, --accumulate 4, fewer --workers, or more memory for this container"
)

logger = logging.getLogger(__name__)


class Nursery:
    """The process that a run's children are forked from; it starts at once, and again should it die."""

    def __init__(self) -> None:
        self._codes: dict[int, int | None] = {}
        self._newest: int | None = None
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill the nursery, and with it all its children."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def spawn(self, job: Job, log: Path) -> "Child":
        """Start a process that does a job; its output is added to ``log``."""
        self._take(self._channel.waiting())
        if self._channel.lost:
            self.end()
            self._begin()
        ours, theirs = channel_pair()
        with log.open("ab") as output:
            start = output.tell()
            with os.fdopen(anonymous_file("dkan-job"), "w+b") as text:
                text.write(job.to_json().encode())
                text.seek(0)
                handles = [text.fileno(), output.fileno(), theirs.fileno(), *job.handles()]
                socket.send_fds(self._link, [b"j"], handles)
                self._newest = None
                pid = self._started()
        theirs.close()
        return Child(self, job, Channel(ours), pid, log, start)

    def code_of(self, pid: int, *, wait: bool = False) -> int | None:
        """Return the exit code of a child, negative for a signal; None while it runs, unless it is waited for."""
        self._take(self._channel.waiting())
        while wait and self._codes[pid] is None:
            with suppress(PeerLostError):
                self._take([self._channel.receive()])
            self._take([])
        return self._codes[pid]

    def _take(self, messages: list[Message]) -> None:
        """Note which children have started and ended; all have, if the nursery has died: they die with it."""
        for message in messages:
            self._codes[message["pid"]] = message["code"]
            if message["code"] is None:
                self._newest = message["pid"]
        if self._channel.lost:
            self._codes = {pid: -signal.SIGKILL if code is None else code for pid, code in self._codes.items()}

    def _begin(self) -> None:
        ours, theirs = channel_pair()
        self._link, self._channel = ours, Channel(ours)
        package = str(Path(dkan_core.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        # Threads are started by the children, as many as each is told; numpy's would be in the way of forking.
        env = {"OMP_WAIT_POLICY": "passive", **KEEP_MEMORY, **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # -P: what lies in the working folder is not imported. A session of its own: Ctrl-C is the launcher's matter.
        command = [sys.executable, "-P", "-m", "dkan_core.training.nursery", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=env, start_new_session=True
        )
        theirs.close()

    def _started(self) -> int:
        """Wait until the nursery has forked; return the child's number."""
        try:
            while self._newest is None:
                self._take([self._channel.receive()])
        except PeerLostError:
            raise TrainingError("the process that starts the others has died; see the messages above") from None
        return self._newest


class Child:
    """A running process of ours."""

    def __init__(self, nursery: Nursery, job: Job, channel: Channel, pid: int, log: Path, log_start: int) -> None:
        self.name, self.role, self.rank = job.name, job.role, job.rank
        self.channel, self.log = channel, log
        self._nursery, self._pid, self._log_start = nursery, pid, log_start

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while the process runs."""
        return self._nursery.code_of(self._pid)

    def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        code = self._nursery.code_of(self._pid, wait=True)
        assert code is not None
        return code

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process if it still runs, and let go of everything."""
        self.kill()
        self.wait()
        self.channel.close()

    def describe_death(self) -> str:
        """Say how the process ended, with the end of its log."""
        code = self.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        tail = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES_SHOWN:]) or "  (it wrote nothing)"
        hint = ""
        if code == LOST_PARTNER:
            hint = ": it has lost the other members; one of them has died, or the network to it is cut"
        elif code == -signal.SIGKILL:
            hint = f"; out of memory is the usual cause: {OUT_OF_MEMORY}"
        elif "out of memory" in text.lower() or "MemoryError" in text:
            hint = f"; {OUT_OF_MEMORY}"
        return f"{self.name} died ({how}{hint}). The end of {self.log.parent.name}/{self.log.name}:\n{tail}"
