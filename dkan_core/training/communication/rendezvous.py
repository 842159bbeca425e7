"""Where the ranks of a run without a server find each other; needs no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from dkan_core.errors import ConfigError

# Exit code of a rank that ends because another one is gone: EX_TEMPFAIL of <sysexits.h>, so a retry may succeed.
PEER_LOST = 75


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The store that a run's ranks connect to, and how they talk to each other from then on."""

    host: str = "127.0.0.1"
    port: int = 0
    prefix: str = ""
    """Prefix of this run's keys; ranks that replace others use another prefix."""

    backend: str = "gloo"
    """Of torch.distributed."""

    one_node: bool = True
    """Whether one launcher has started all ranks: it can replace them, and they talk over the loopback."""

    def for_generation(self, generation: int) -> Self:
        """Return the rendezvous of the ranks that replace earlier ones."""
        return replace(self, prefix=f"{self.prefix}/{generation}")


def _whole_number(variables: Mapping[str, str], name: str, default: int = 0) -> int:
    value = variables.get(name, str(default))
    if not value.isdecimal():
        raise ConfigError(f"environment variable {name}: expected a whole number, as torchrun sets it, got {value!r}")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class TorchRun:
    """The environment that torchrun gives a process."""

    rank: int
    size: int
    local_size: int
    host: str
    port: int
    agent_has_store: bool
    """Whether torchrun's agent serves a store at ``host`` and ``port``; otherwise rank 0 has to."""

    attempt: str
    """How often torchrun has restarted all ranks."""

    one_node: bool = False
    """Whether all ranks are known to be on this node."""

    has_own_gpu: bool = False
    """Whether this process sees only its own GPU, as with torchrun's ``--virtual-local-rank``."""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> "TorchRun | None":
        """Return the environment; None if torchrun did not start this process, or started it alone.

        Raises:
            ConfigError: A variable is not a number.

        >>> TorchRun.read({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "node"}) is None
        True
        """
        size = _whole_number(variables, "WORLD_SIZE", 1)
        if size == 1 or not {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= variables.keys():
            return None
        return cls(
            rank=_whole_number(variables, "RANK"),
            size=size,
            local_size=_whole_number(variables, "LOCAL_WORLD_SIZE", size),
            host=variables["MASTER_ADDR"],
            port=_whole_number(variables, "MASTER_PORT"),
            agent_has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
            # Launchers other than torchrun may leave it unset on several nodes, so an unset variable does not mean one
            # node.
            one_node=variables.get("LOCAL_WORLD_SIZE") == str(size),
            has_own_gpu="," not in variables.get("CUDA_VISIBLE_DEVICES", ","),
        )
