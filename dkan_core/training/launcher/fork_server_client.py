"""The fork server of a run as its launcher sees it."""

import functools
import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from dkan_core.errors import TrainingError
from dkan_core.training.communication.messages import Channel, PeerLostError, channel_pair
from dkan_core.training.launcher.child_processes import Child, pause_before_restart
from dkan_core.training.launcher.fork_server import GO
from dkan_core.training.launcher.fork_server_start import (
    POLL_SECONDS,
    ForkedProcess,
    launch_fork_server,
    take_forked,
)
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import anonymous_file
from dkan_core.utils.prctl import adopt_orphans, stop_adopting

# A fork server that takes longer to fork is stopped or hangs: forking takes hundredths of a second.
REPLY_SECONDS = 30.0

# Forks that may fail in a row, over about a minute, from fork servers that have started: a limit on processes may be
# reached for a moment only.
MAX_FAILED_FORKS = 10

logger = logging.getLogger(__name__)


@contextmanager
def one_fork_server() -> Iterator[Callable[[], "ForkServer"]]:
    """Yield a function that starts a fork server on its first call, and returns the same one from then on."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(ForkServer()))


class ForkServer:
    """The process that a run's processes are forked from; it starts at once, and is replaced if it dies.

    The forked processes survive it; they are killed when the block ends.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._deaths = 0
        self._failed_forks = 0
        self._due = 0.0
        self._ready = False
        # Intermediate processes fork the children and end at once; the kernel then hands the orphans to this process.
        adopt_orphans()
        self._process, self._link, self._channel = self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        stop_adopting()

    def end(self) -> None:
        """Kill the fork server and every process that it has started."""
        self._stop()
        for child in self._children:
            child.kill()
            child.wait()

    def is_ready(self) -> bool:
        """Return whether it can start a process now; if it has died, another one is started.

        Raises:
            TrainingError: It cannot start.
        """
        code = self._process.poll()
        if code is None:
            self._ready = self._ready or bool(self._channel.waiting())
        elif not self._channel.closed:
            self._stop()
            # A positive exit code is an error of the fork server itself, which would recur; a signal may come from
            # outside.
            if code > 0 and not self._ready:
                raise TrainingError(f"the fork server cannot start (exit code {code}); see the messages above")
            self._deaths += 1
            self._due = time.monotonic() + pause_before_restart(self._deaths)
            logger.warning("the fork server died; starting a replacement")
            self._ready = False
        if self._channel.closed and time.monotonic() >= self._due:
            self._process, self._link, self._channel = self._begin()
        return self._ready

    def spawn(self, spec: ProcessSpec, log: Path) -> Child:
        """Start a process that runs a spec, as soon as possible; its output is appended to ``log``."""
        # The fork server may still be starting, or be dying: both pass.
        while (child := self.try_spawn(spec, log)) is None:
            time.sleep(POLL_SECONDS)
        return child

    def try_spawn(self, spec: ProcessSpec, log: Path) -> Child | None:
        """Start a process that runs a spec, if that can be done now.

        Raises:
            TrainingError: Repeated attempts have failed.
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
            # If the fork server has just died, the missing answer shows it.
            with suppress(OSError):
                socket.send_fds(self._link, [b"j"], handles)
        pid = _first_message(channel)
        if pid is None:
            # Whatever has happened to the fork server, replace it. A process that it has forked ends when the channel
            # closes.
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
        # Drop those that have ended: a process that is replaced often must not fill the list.
        self._children = [*(each for each in self._children if each.poll() is None), child]
        self._deaths = self._failed_forks = 0
        with suppress(OSError):
            ours.sendall(GO)
        return child

    def _begin(self) -> tuple[subprocess.Popen[bytes] | ForkedProcess, socket.socket, Channel]:
        """Start the fork server, or take the one forked ahead; return it, the socket to it, and the channel to read."""
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
    """Wait for the PID of a process that is being started; None if the fork server does not answer."""
    if not select.select([channel], [], [], REPLY_SECONDS)[0]:
        return None
    try:
        return int(channel.receive()["pid"])
    except PeerLostError:
        return None
