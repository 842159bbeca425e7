"""Specification of a child process."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.training.communication.messages import with_tuples
from dkan_core.training.communication.rendezvous import Rendezvous
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.training.state.shared_memory import MemoryShape, SharedMemory

# Roles that may have several processes, each with a device, and the prefix of those processes' names.
COMPUTING = {"worker": "worker", "collective-worker": "rank"}


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A child process's specification. Handles are inherited file descriptors."""

    role: str
    """"worker", "server", "collective-worker" or "evaluator": the module that does it."""

    rank: int = 0
    """Rank of a worker or collective worker."""

    generation: int = 1
    """How many processes its name has had."""

    device: str = "cpu"
    threads: int = 1

    prepared: str
    fingerprint: str = ""
    """Identifies the data in ``prepared``; empty where there are none."""

    run: str
    config: ResolvedTrainConfig
    model: dict[str, Any]
    """The architecture, as ``config.json`` holds it."""

    train_rows: int
    """Rows of the train split."""

    groups: ParameterGroups
    """Weight decay and learning rate factors of the parameters."""

    shape: MemoryShape
    memory: int
    """Handle of the shared memory."""

    wakeups: dict[str, tuple[int, int]]
    """Handles of each process's wake-up, by its name."""

    launcher: int = -1
    """Handle of the channel to the launcher."""

    rendezvous: Rendezvous | None = None
    """Where the ranks find each other; None where there is only one rank, or a server."""

    earlier_origins: tuple[dict[str, Any], ...] = ()
    """Origins of the rows of the earlier trainings that this one continues."""

    choices: RefitChoices | None = None
    """Choices of the first training, where this one is a refit."""

    history: tuple[dict[str, Any], ...] = field(default=())
    """Evaluations that an earlier evaluator has reported; of the evaluator's spec alone."""

    republished: int = 0
    """Snapshots from the checkpoint that the run resumes from: the first ones in its memory."""

    logs: str = ""
    """Folder for what libraries write when they are debugged; empty where there is none."""

    best: str = ""
    """File that the evaluator writes the best state to."""

    @property
    def name(self) -> str:
        """What messages and log files call this process."""
        return process_name(self.role, self.rank)

    def handles(self) -> tuple[int, ...]:
        """Return the handles that the child needs, in addition to the one of the launcher."""
        return (self.memory, *(handle for pair in self.wakeups.values() for handle in pair))

    def open_memory(self) -> SharedMemory:
        """Map the shared memory."""
        return SharedMemory(self.memory, self.shape)

    def wakeup(self, name: str) -> Wakeup:
        """Return a process's wake-up."""
        return Wakeup(self.wakeups[name])

    def with_handles(self, launcher: int, handles: Sequence[int]) -> Self:
        """Return the spec with its handles replaced by their numbers in another process, as ``handles`` gives them."""
        memory, *wakeups = handles
        pairs = zip(wakeups[::2], wakeups[1::2], strict=True)
        return replace(self, launcher=launcher, memory=memory, wakeups=dict(zip(self.wakeups, pairs, strict=True)))

    def to_json(self) -> str:
        """Return the text that goes to the child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ProcessSpec":
        """Read what ``to_json`` has written."""
        plain = with_tuples(json.loads(text))
        parts: dict[str, Any] = {
            "config": ResolvedTrainConfig,
            "shape": MemoryShape,
            "groups": ParameterGroups,
            "rendezvous": Rendezvous,
            "choices": RefitChoices,
        }
        return cls(**plain | {name: part(**plain[name]) for name, part in parts.items() if plain[name] is not None})


def process_name(role: str, rank: int = 0) -> str:
    """Return what messages, log files and wake-ups call a process.

    >>> process_name("worker", 1), process_name("collective-worker", 0), process_name("server")
    ('worker-1', 'rank-0', 'server')
    """
    return f"{COMPUTING[role]}-{rank}" if role in COMPUTING else role


def process_names(config: ResolvedTrainConfig, *, ranks: int | None = None) -> list[str]:
    """Return the names of one launcher's processes; with ``ranks``, only those of the first ranks."""
    first, role = (["server"], "worker") if config.has_server else ([], "collective-worker")
    return [*first, "evaluator", *(process_name(role, rank) for rank in range(ranks or config.workers))]


def role_and_rank(name: str) -> tuple[str, int]:
    """Return the role and the rank of a process's name: the inverse of ``process_name``.

    >>> role_and_rank("rank-1"), role_and_rank("server")
    (('collective-worker', 1), ('server', 0))
    """
    prefix, _, rank = name.partition("-")
    roles = {prefix: role for role, prefix in COMPUTING.items()}
    return roles.get(prefix, prefix), int(rank or 0)
