"""Processes that measure something together, and what they report."""

import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from dkan_core.errors import TrainingError
from dkan_core.training.communication.messages import Message
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.launcher.child_processes import Child
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.utils.storage.scratch import scratch_folder

# Kind of the message that a process reports with.
MEASURED = "measured"

# A measurement without a report for this long has failed.
PROBE_TIMEOUT_SECONDS = 300.0


@dataclass
class ProbeProcesses:
    """The processes of one measurement; they are gone when the block ends."""

    fork_server: ForkServer
    folder: Path
    """For their logs."""

    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.end()

    def start_process(self, spec: ProcessSpec) -> None:
        """Start a process that measures; it ends with the block."""
        self.children.append(self.fork_server.spawn(spec, self.folder / f"{spec.role}-{spec.rank}.log"))

    def wait_for_reports(self, count: int) -> list[Message]:
        """Wait until ``count`` of them have reported, and return the reports by rank.

        Raises:
            DkanError: One of them met an error of ours.
            TrainingError: One of them died.
        """
        found: dict[int, Message] = {}
        deadline = time.monotonic() + PROBE_TIMEOUT_SECONDS
        with selectors.DefaultSelector() as selector:
            for child in self.children:
                selector.register(child.channel, selectors.EVENT_READ, child)
            while len(found) < count:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    self._handle_channel(key.data, found, selector)
                if time.monotonic() > deadline:
                    raise TrainingError(f"no measurement within {PROBE_TIMEOUT_SECONDS:.0f} s")
        return [found[rank] for rank in sorted(found)]

    def _handle_channel(self, child: Child, found: dict[int, Message], selector: selectors.BaseSelector) -> None:
        for message in child.messages():
            if message.pop("kind") == MEASURED:
                found[child.rank] = message
        if child.channel.lost:
            selector.unregister(child.channel)
            if child.wait() != 0:
                raise TrainingError(child.describe_death())


NewProcesses = Callable[[], ProbeProcesses]
"""Returns the processes of a measurement, none yet."""


@contextmanager
def open_probes() -> Iterator[NewProcesses]:
    """Yield what begins a measurement; all measurements of the block share a fork server."""
    with scratch_folder() as folder, ForkServer() as fork_server:
        yield partial(ProbeProcesses, fork_server, folder)


def close_handles(spec: ProcessSpec) -> None:
    """Close this process's handles of a spec's memory and wake-ups."""
    os.close(spec.memory)
    for pair in spec.wakeups.values():
        Wakeup(pair).close()
