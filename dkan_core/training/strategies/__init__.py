"""How the members of a run without a server keep one set of parameters."""

from dkan_core.training.strategies.allreduce import AllReduce
from dkan_core.training.strategies.base import Strategy
from dkan_core.training.strategies.ddp import DistributedDataParallelism
from dkan_core.training.strategies.local_sgd import LocalSGD
from dkan_core.training.strategies.ring import Ring
from dkan_core.training.strategies.single import Single

STRATEGIES: dict[str, type[Strategy]] = {
    "allreduce": AllReduce,
    "ddp": DistributedDataParallelism,
    "ring": Ring,
    "local-sgd": LocalSGD,
    "single": Single,
}
