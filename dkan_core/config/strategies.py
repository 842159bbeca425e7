"""The strategies by which workers synchronize, and the differences that settings and checks depend on.

The code of a strategy without a server is a class in ``dkan_core.training.collectives``.
"""

from typing import Literal

ResolvedStrategy = Literal[
    "parameter-server",
    "allreduce",
    "ddp",
    "ring",
    "local-sgd",
    "single",
    "tensor-parallel",
    "hybrid",
    "pipeline",
]
Strategy = Literal["auto", ResolvedStrategy]

MODEL_PARALLEL = ("tensor-parallel", "hybrid", "pipeline")
"""Strategies that divide the model among workers."""

ONE_NODE = ("parameter-server", "single")
"""Strategies without a process group of torch.distributed: workers meet their server in shared memory."""

DESCRIPTIONS = {
    ("parameter-server", "sync"): (
        "gradients aggregated every step, equal to one process with the global batch; one node, survives the death of "
        "any process"
    ),
    ("parameter-server", "average"): "parameters aggregated every sync interval, weighted by rows",
    ("parameter-server", "async"): (
        "differences aggregated as they come, the stale ones less: no worker waits for another"
    ),
    ("allreduce", "sync"): "gradients summed by torch.distributed every step; several nodes",
    ("ddp", "sync"): "torch's DistributedDataParallel, for reference",
    ("ring", "sync"): "gradients summed around a ring of workers, for comparison",
    ("local-sgd", "sync"): "parameters averaged by torch.distributed every sync interval",
    ("single", "sync"): "one worker, nothing to aggregate",
    ("tensor-parallel", "sync"): "workers divide the units of each hidden layer, and take the same rows",
    ("hybrid", "sync"): "groups of workers divide the rows, the workers of a group the units of each hidden layer",
    ("pipeline", "sync"): "workers divide the layers, and take the same rows in turn",
}
"""By strategy and mode; the log shows why a strategy was chosen."""


def averages_parameters(strategy: ResolvedStrategy, mode: str) -> bool:
    """Return whether workers take steps of their own between two synchronizations."""
    return mode != "sync" or strategy == "local-sgd"
