"""From which size on the strategies that divide a model would pay: beyond what one device holds.

They are never the fastest: they exchange what ``allreduce`` does and also activations, through the host, which has the
optimizer. So only memory for parameters and gradients matters; that for rows can be reduced by ``accumulate``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.planning.device_memory import RESERVED_SHARE
from dkan_core.training.planning.sizes import show_size

BYTES_PER_PARAMETER = 8
"""Value and gradient, of four bytes each: the optimizer's moments may lie on the host."""

COLUMNS = ("strategy", "workers", "a worker holds", "of", "pays off from")


@dataclass(frozen=True, kw_only=True)
class ModelParallelPlan:
    """What a strategy that divides the model among workers means for this one."""

    strategy: str
    workers: int
    bytes_per_worker: float
    """Parameters and gradients, on the device that has most."""

    bytes_whole: float
    """Parameters and gradients of the whole model."""

    hidden_from: int | None = None
    """Least units of the first hidden layer, the others growing with it, for which one device is too small."""

    layers_from: int | None = None
    """Least number of hidden layers as wide as the first one for which one device is too small."""

    def cells(self) -> tuple[str, ...]:
        """Return its line of the table; where the device's memory is not known, it says so."""
        pays = "unknown without --device-memory"
        if self.hidden_from is not None:
            pays = f"hidden {self.hidden_from:,}"
        elif self.layers_from is not None:
            pays = f"{self.layers_from:,} hidden layers"
        return self.strategy, str(self.workers), show_size(self.bytes_per_worker), show_size(self.bytes_whole), pays


def layer_sizes(parameters: int, config: ResolvedTrainConfig, labels: int) -> tuple[int, ...]:
    """Return how many of a model's parameters each layer has; what leads to the first one is a part of it.

    >>> from dkan_core import TrainConfig
    >>> from dkan_core.training.setup.defaults import resolve
    >>> config = resolve(TrainConfig(device="cpu", hidden=(10, 20), members=2), 1000)
    >>> layer_sizes(10_000, config, labels=1)
    (6040, 3600, 360)
    """
    edges = config.num_centers + 1
    widths = [*config.hidden, labels]
    later = [config.members * edges * inputs * outputs for inputs, outputs in pairwise(widths)]
    return parameters - sum(later), *later


def growth_to(parameters: float, layers: Sequence[int]) -> float:
    """Return the factor of all hidden widths that leads to this number of parameters.

    >>> growth_to(620, (100, 100, 10))
    2.0
    """
    first, *between, last = layers
    linear, square = first + last, sum(between)
    return 2 * parameters / (linear + math.sqrt(linear**2 + 4 * square * parameters))


def model_parallel_plans(
    parameters: int, config: ResolvedTrainConfig, labels: int, workers: int, device_memory: float | None
) -> tuple[ModelParallelPlan, ...]:
    """Return what the strategies that divide the model would hold, and from which size on they would pay.

    Args:
        parameters: Number of the model's parameters.
        config: Resolved settings.
        labels: Outputs of the model.
        workers: How many there may be, at least 2.
        device_memory: Bytes of one device; None where they are not known.
    """
    if config.model == "additive" or config.sketch_rank or not config.hidden:
        return ()
    layers = layer_sizes(parameters, config, labels)
    most = None if device_memory is None else (1 - RESERVED_SHARE) * device_memory / BYTES_PER_PARAMETER
    hidden_from = None if most is None else math.ceil(config.hidden[0] * growth_to(most, layers))
    layers_from = None if most is None else _layers_beyond(most, layers, config)
    groups = [("tensor-parallel", workers), *([("hybrid", 2)] if workers >= 4 else [])]
    divided = sum(layers[:-1])
    return (
        *(
            ModelParallelPlan(
                strategy=strategy,
                workers=workers - workers % share if strategy == "hybrid" else workers,
                bytes_per_worker=BYTES_PER_PARAMETER * (divided / share + layers[-1]),
                bytes_whole=BYTES_PER_PARAMETER * parameters,
                hidden_from=hidden_from,
            )
            for strategy, share in groups
        ),
        ModelParallelPlan(
            strategy="pipeline",
            workers=(stages := min(workers, len(layers))),
            bytes_per_worker=BYTES_PER_PARAMETER * _largest_stage(layers, stages),
            bytes_whole=BYTES_PER_PARAMETER * parameters,
            layers_from=layers_from,
        ),
    )


def model_parallel_table(plans: Sequence[ModelParallelPlan]) -> list[str]:
    """Return Markdown: a line for each strategy."""
    lines = ["dividing the model is slower than allreduce; it helps only where one device is too small for it:", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 2) + "---|"]
    return [*lines, *(f"| {' | '.join(each.cells())} |" for each in plans)]


def _layers_beyond(most: float, layers: Sequence[int], config: ResolvedTrainConfig) -> int:
    width = config.hidden[0]
    more = config.members * (config.num_centers + 1) * width**2
    return 1 + max(0, math.ceil((most - layers[0] - layers[-1]) / more))


def _largest_stage(layers: Sequence[int], stages: int) -> int:
    edges = [len(layers) * stage // stages for stage in range(stages + 1)]
    return max(sum(layers[start:stop]) for start, stop in pairwise(edges))
