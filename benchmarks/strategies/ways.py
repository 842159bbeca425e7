"""The ways to train that are compared, and the bytes that a worker exchanges in each."""

import math
from dataclasses import dataclass
from typing import Any

from dkan_core import TrainConfig
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.state.shared_memory import MemoryShape

REFERENCE = "single"
DATA_PARALLEL = "torch DataParallel"
# Parameters and both moments of AdamW.
AVERAGED_ARRAYS = 3


@dataclass(frozen=True)
class Way:
    """A strategy, with the mode of one that has modes."""

    name: str
    settings: dict[str, Any]
    most_workers: int = 1024
    fewest_workers: int = 1

    def takes(self, workers: int) -> bool:
        """Return whether it can train with so many workers."""
        return self.fewest_workers <= workers <= self.most_workers

    def config(self, workers: int, **settings: Any) -> TrainConfig:
        """Return the settings of a run."""
        return TrainConfig(**self.settings, workers=workers, **settings)


WAYS = (
    Way(REFERENCE, {"strategy": "single"}, most_workers=1),
    *(
        Way(f"parameter-server {mode}", {"strategy": "parameter-server", "mode": mode})
        for mode in ("sync", "average", "async")
    ),
    *(Way(name, {"strategy": name}, fewest_workers=2) for name in ("allreduce", "ring", "ddp", "local-sgd")),
)


def exchanged_bytes(config: ResolvedTrainConfig, parameters: int, steps: int) -> int:
    """Return the bytes that one worker sends and receives in so many steps, by arithmetic.

    A worker of a parameter server pushes its arrays and pulls the parameters. The sums of the others move
    2 (N - 1) / N of a buffer in each direction, N being the workers: the bound that a ring reaches.

    Args:
        config: Of the run.
        parameters: Trainable ones, of 4 bytes.
        steps: Global batches.
    """
    exchanges = math.ceil(steps / max(1, config.sync_interval))
    if config.strategy == "single":
        return 0
    if config.strategy == "parameter-server":
        pushed = MemoryShape.from_config(config, parameters).pushed
        return 4 * parameters * (pushed + (AVERAGED_ARRAYS if config.mode == "average" else 1)) * exchanges
    arrays = AVERAGED_ARRAYS if config.strategy == "local-sgd" else 1
    share = 2 * (config.workers - 1) / config.workers
    return round(2 * share * 4 * parameters * arrays * exchanges)
