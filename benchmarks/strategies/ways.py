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
    whole_groups_of: int = 1

    def takes(self, workers: int) -> bool:
        """Return whether it can train with so many workers."""
        return self.fewest_workers <= workers <= self.most_workers and workers % self.whole_groups_of == 0

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
    # The model that is compared has one hidden layer, of a power of two units: so many workers can divide it.
    Way("tensor-parallel", {"strategy": "tensor-parallel"}, fewest_workers=2, whole_groups_of=2),
    Way("hybrid", {"strategy": "hybrid", "tensor_parallel_size": 2}, fewest_workers=4, whole_groups_of=2),
    Way("pipeline", {"strategy": "pipeline"}, fewest_workers=2, most_workers=2),
)


def exchanged_bytes(config: ResolvedTrainConfig, parameters: int, steps: int) -> int:
    """Return the bytes that one worker sends and receives in so many steps, by arithmetic.

    A worker of a parameter server pushes its arrays and pulls the parameters. The sums of the others move
    2 (N - 1) / N of a buffer in each direction, N being the workers: the bound that a ring reaches. Where workers
    divide the model, activations come on top, the mean over the workers.

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
    return round(2 * share * 4 * parameters * arrays * exchanges + activation_bytes(config) * steps)


def activation_bytes(config: ResolvedTrainConfig) -> float:
    """Return what one worker sends and receives of hidden units in a step, and of their gradients."""
    bytes_by_layer = [4 * config.members * config.batch_size * width for width in config.hidden]
    if config.strategy == "pipeline":
        edges = [(len(config.hidden) + 1) * stage // config.workers for stage in range(1, config.workers)]
        # There and back, counted at both ends.
        return 4 * sum(bytes_by_layer[edge - 1] for edge in edges) / config.workers
    # Every layer is gathered, and its gradient summed where another divided layer reads it.
    part, copies = config.workers_per_copy, config.workers / config.workers_per_copy
    return 2 * (part - 1) / part * (sum(bytes_by_layer) + 2 * sum(bytes_by_layer[:-1])) / copies
