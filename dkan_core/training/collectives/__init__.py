"""How the ranks of a run without a server keep one set of parameters."""

from dkan_core.training.collectives.allreduce import AllReduce, Ring
from dkan_core.training.collectives.ddp import DistributedDataParallelism
from dkan_core.training.collectives.host_exchange import HostExchange
from dkan_core.training.collectives.local_sgd import LocalSGD
from dkan_core.training.collectives.on_device import (
    AveragingExchange,
    DdpExchange,
    DeviceExchange,
    GradientExchange,
    RingExchange,
)
from dkan_core.training.collectives.pipeline import Pipeline
from dkan_core.training.collectives.tensor_parallel import TensorParallelism

HOST_STRATEGIES: dict[str, type[HostExchange]] = {
    "allreduce": AllReduce,
    "ddp": DistributedDataParallelism,
    "ring": Ring,
    "local-sgd": LocalSGD,
    "tensor-parallel": TensorParallelism,
    "hybrid": TensorParallelism,
    "pipeline": Pipeline,
}
"""With the state and the optimizer on the host."""

DEVICE_STRATEGIES: dict[str, type[DeviceExchange]] = {
    "allreduce": GradientExchange,
    "ring": RingExchange,
    "ddp": DdpExchange,
    "local-sgd": AveragingExchange,
}
"""With both on the GPUs (``ResolvedTrainConfig.steps_on_devices``)."""
