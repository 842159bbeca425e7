"""What a child process is told: its job, read as JSON from standard input."""

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dkan_core.config import TrainConfig, build_config
from dkan_core.errors import UserError
from dkan_core.training.channel import PeerLostError, inherited
from dkan_core.training.memory import SharedMemory
from dkan_core.training.optimizer import Decayed

PEER_LOST_EXIT_CODE = 70


@dataclass(frozen=True, kw_only=True)
class Job:
    """A child's job. Handles are inherited file descriptors."""

    role: str
    """"worker", "server" or "evaluator"."""

    rank: int
    """Of a worker, from 0; 0 for the others."""

    prepared: str
    run: str
    config: TrainConfig
    """Resolved: nothing in it is None but ``max_seconds``."""

    model: dict[str, Any]
    """The architecture, as ``config.json`` holds it."""

    train_rows: int
    """Rows of the train split."""

    parameters: int
    """Trained numbers of the model."""

    decayed: tuple[Decayed, ...]
    """Which stretches of them decay, and how much."""

    memory: int
    """Handle of the shared memory."""

    launcher: int
    """Handle of the channel to the launcher."""

    peers: tuple[int, ...]
    """Handles of channels: a worker's to the server; the server's to each worker, then to the evaluator; the
    evaluator's to the server."""

    threads: int

    @property
    def name(self) -> str:
        """What messages and log files call this process."""
        return f"{self.role}-{self.rank}" if self.role == "worker" else self.role

    def handles(self) -> tuple[int, ...]:
        """Return every handle that the child inherits."""
        return (self.memory, self.launcher, *self.peers)

    def open_memory(self) -> SharedMemory:
        """Map the shared memory."""
        assert self.config.workers is not None
        return SharedMemory(self.memory, parameters=self.parameters, workers=self.config.workers)

    def to_json(self) -> str:
        """Return the text that goes to the child."""
        return json.dumps(asdict(self))


def run_child(work: Callable[[Job], None]) -> None:
    """Read the job, do it, and exit: with code 70 when another process of the run is gone.

    A user's mistake that shows only here (a damaged shard, a full disk) goes to the launcher, which raises it.
    """
    plain = json.load(sys.stdin)
    plain["config"] = build_config(TrainConfig, plain["config"])
    plain["peers"], plain["decayed"] = tuple(plain["peers"]), tuple(map(tuple, plain["decayed"]))
    job = Job(**plain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {job.name} %(message)s")
    try:
        work(job)
    except UserError as error:
        logging.getLogger(__name__).exception("ends the run")
        inherited(job.launcher).send(kind="user_error", error=type(error).__name__, text=str(error))
        sys.exit(error.exit_code)
    except PeerLostError:
        logging.getLogger(__name__).info("another process of the run is gone")
        sys.stderr.flush()
        os._exit(PEER_LOST_EXIT_CODE)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the launcher dies (Linux); elsewhere the closed channels end it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
