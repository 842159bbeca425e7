"""The child processes of a run as their launcher sees them."""

import functools
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dkan_core.errors import TrainingError
from dkan_core.training.communication.messages import Channel, Message, PeerLostError, channel_pair, error_of
from dkan_core.training.communication.rendezvous import PEER_LOST
from dkan_core.training.launcher.fork_server import GO
from dkan_core.training.launcher.fork_server_start import ForkedProcess, launch_fork_server, take_forked
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import anonymous_file
from dkan_core.utils.prctl import adopt_orphans, stop_adopting

# What NCCL's watchdog writes before it ends a rank that has waited for others in vain.
NCCL_TIMEOUT = "Watchdog caught collective operation timeout"

# Of the log of a process that died, in the error: enough for a traceback.
LOG_LINES_SHOWN = 40

COMPUTING_ADVICE = "a smaller --batch-size, --accumulate 4, fewer --workers, or more memory for this container"
# What to change when a process of a role has run out of memory; of the others, ``COMPUTING_ADVICE``.
MEMORY_ADVICE = {
    "evaluator": "a smaller validation split (--split of dkan prepare), another --eval-device such as cpu, or more "
    "memory for this container",
    "server": "fewer --members, a smaller --hidden, fewer --workers, or more memory for this container",
}

# A fork server that has not forked for so long is stopped or hangs: forking takes hundredths of a second.
REPLY_SECONDS = 30.0

# So many processes in a row may fail to start from fork servers that could: for about a minute, as a limit on processes
# may be reached for a moment only.
MAX_FAILED_FORKS = 10

# Between two polls of a process that ends or starts: short beside both, which take hundredths of a second.
POLL_SECONDS = 0.01

# Seconds. A single death is healed at once; what dies again and again costs the machine next to nothing.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0

logger = logging.getLogger(__name__)


def pause_before_restart(deaths: int) -> float:
    """Return seconds to wait after so many deaths in a row.

    >>> [pause_before_restart(deaths) for deaths in (1, 2, 3, 4, 50)]
    [0.0, 0.1, 0.2, 0.4, 30.0]
    """
    return 0.0 if deaths < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(deaths - 2, 20))


@contextmanager
def one_fork_server() -> Iterator[Callable[[], "ForkServer"]]:
    """Yield what starts a fork server when it is first called, and returns that one from then on."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(ForkServer()))


class ForkServer:
    """The process that a run's processes are forked from; it starts at once, and another one should it die.

    The processes live on without it; they are gone when the block ends.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._deaths = 0
        self._failed_forks = 0
        self._due = 0.0
        self._ready = False
        # Children come from processes in between that end at once; the kernel hands them to whoever adopts orphans.
        adopt_orphans()
        self._process, self._link, self._channel = self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        stop_adopting()

    def end(self) -> None:
        """Kill the fork server and every process that it has started."""
        self._stop()
        for child in self._children:
            child.kill()
            child.wait()

    def is_ready(self) -> bool:
        """Tell whether it can start a process now; if it has died, another one is started.

        Raises:
            TrainingError: It cannot start.
        """
        code = self._process.poll()
        if code is None:
            self._ready = self._ready or bool(self._channel.waiting())
        elif not self._channel.closed:
            self._stop()
            # A positive code is an error of its own, which would come again; a signal may be the machine's doing.
            if code > 0 and not self._ready:
                raise TrainingError(f"the fork server cannot start (exit code {code}); see the messages above")
            self._deaths += 1
            self._due = time.monotonic() + pause_before_restart(self._deaths)
            logger.warning("the fork server died; starting a replacement")
            self._ready = False
        if self._channel.closed and time.monotonic() >= self._due:
            self._process, self._link, self._channel = self._begin()
        return self._ready

    def spawn(self, spec: ProcessSpec, log: Path) -> "Child":
        """Start a process that runs a spec, as soon as it can be; its output is added to ``log``."""
        # It may be starting still, or dying: both pass.
        while (child := self.try_spawn(spec, log)) is None:
            time.sleep(POLL_SECONDS)
        return child

    def try_spawn(self, spec: ProcessSpec, log: Path) -> "Child | None":
        """Start a process that runs a spec, if that can be done now.

        Raises:
            TrainingError: None can be started, as often as it is tried.
        """
        if not self.is_ready():
            return None
        ours, theirs = channel_pair()
        channel = Channel(ours)
        text = anonymous_file("dkan-spec")
        with theirs, log.open("ab") as output:
            start = output.tell()
            os.pwrite(text, spec.to_json().encode(), 0)
            handles = [text, output.fileno(), theirs.fileno(), *spec.handles()]
            # A fork server that has just died is noticed by the missing answer.
            with suppress(OSError):
                socket.send_fds(self._link, [b"j"], handles)
        pid = _first_message(channel)
        if pid is None:
            # Whatever has happened to it, another one is started. A process that it has forked ends with the channel.
            self._process.kill()
            self._process.wait()
            channel.close()
            os.close(text)
            self._failed_forks += 1
            if self._failed_forks == MAX_FAILED_FORKS:
                raise TrainingError(
                    f"{spec.name} cannot start: {MAX_FAILED_FORKS} attempts to fork it have failed; the usual cause "
                    "is a limit on processes (ulimit -u; of a container, its pids limit) or on memory"
                )
            return None
        child = Child(spec, channel, pid, text, log, start)
        # Only those that run: a process that is replaced often must not fill the list.
        self._children = [*(each for each in self._children if each.exit_code is None), child]
        self._deaths = self._failed_forks = 0
        with suppress(OSError):
            ours.sendall(GO)
        return child

    def _begin(self) -> tuple[subprocess.Popen[bytes] | ForkedProcess, socket.socket, Channel]:
        """Start the fork server, or take the one that is there; return it, the socket to it, and what to read from."""
        if first := take_forked():
            return *first, Channel(first[1])
        ours, theirs = channel_pair()
        process = launch_fork_server(theirs.fileno())
        theirs.close()
        return process, ours, Channel(ours)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()


def _first_message(channel: Channel) -> int | None:
    """Wait for the number of a process that is being started; None where the fork server does not answer."""
    if not select.select([channel], [], [], REPLY_SECONDS)[0]:
        return None
    try:
        return int(channel.receive()["pid"])
    except PeerLostError:
        return None


class Child:
    """A running process of ours.

    Args:
        spec: What it does.
        channel: To it.
        pid: Its number.
        report: Handle of the file that it writes its exit code to.
        log: What it prints goes there.
        log_start: Where in the log its lines begin.
    """

    def __init__(self, spec: ProcessSpec, channel: Channel, pid: int, report: int, log: Path, log_start: int) -> None:
        self.name = spec.name
        self.role = spec.role
        self.rank = spec.rank
        self.channel = channel
        self.log = log
        self._pid = pid
        self._report = report
        self._log_start = log_start
        self._code: int | None = None

    def messages(self) -> Iterator[Message]:
        """Yield what the process has said; raise the error that it has ended with."""
        for message in self.channel.waiting():
            error = error_of(message)
            if error is not None:
                raise error
            yield message

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while the process runs."""
        return self._poll(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        while (code := self._poll(0)) is None:
            time.sleep(POLL_SECONDS)
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
        if not self.channel.closed:
            self.channel.close()
            os.close(self._report)

    def _poll(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, options)
            except ChildProcessError:
                # Not on Linux, or not yet, or the caller's process lets the system remove its children.
                if not _exists(self._pid):
                    reported = os.pread(self._report, 16, 0)
                    self._code = int(reported) if reported.lstrip(b"-").isdigit() else -signal.SIGKILL
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def describe_death(self) -> str:
        """Say how the process ended, with the end of its log."""
        text = self._log_text()
        tail = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES_SHOWN:]) or "  (it wrote nothing)"
        return f"{self.summarize_death()}. The end of {self.log.parent.name}/{self.log.name}:\n{tail}"

    def summarize_death(self) -> str:
        """Say in a line how the process ended."""
        code, text = self.wait(), self._log_text()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        hint = ""
        advice = f"what to change: {MEMORY_ADVICE.get(self.role, COMPUTING_ADVICE)}"
        if code == PEER_LOST or NCCL_TIMEOUT in text:
            hint = ": it has lost the other ranks; one of them has died, or the network to it is cut"
        # The kernel kills so when a container is out of memory, and leaves no other trace of it.
        elif code == -signal.SIGKILL:
            hint = f"; out of memory is the usual cause; {advice}"
        elif "out of memory" in text.lower() or "MemoryError" in text:
            hint = f"; {advice}"
        return f"{self.name} died ({how}{hint})"

    def _log_text(self) -> str:
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
