"""The machines of a plan: the cores measured here, or a number of GPUs like the one measured here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dkan_core.training.planning.formulas import (
    ADAMW_ARRAYS,
    DEVICE_BANDWIDTH,
    GPU_SCHEMES,
    Link,
    Machine,
    ScalingCurve,
    Scheme,
    StepCost,
    server_exchange,
)
from dkan_core.training.roles.own_updates import MAX_STEPS


@dataclass(frozen=True, kw_only=True)
class Cores(Machine):
    """One machine without a GPU: workers share its cores, and those beyond them take turns."""

    steps: Mapping[int, StepCost]
    """By the number of workers measured at once, each with an even share of the cores."""

    exchanges: Mapping[str, ScalingCurve]
    """By scheme."""

    def step(self, scheme: Scheme, workers: int, rows: float) -> float:
        del scheme
        measured = max(count for count in self.steps if count <= workers)
        # Workers up to the cores were measured together, so that what they take from each other is in the figures.
        turns = workers / measured if workers > self.cores else 1.0
        return turns * self.steps[measured].seconds(rows)

    def exchange(self, scheme: Scheme, workers: int) -> float:
        """Return the time of an exchange, with the optimizer's step where each worker takes that itself."""
        exchanged = self.exchanges[scheme.name].at(workers) if scheme.name in self.exchanges and workers > 1 else 0.0
        if scheme.strategy == "parameter-server":
            return self.exchanges[scheme.name].at(workers)
        return exchanged + (0.0 if scheme.has_local_steps else self.update(scheme, workers))


@dataclass(frozen=True, kw_only=True)
class Gpus(Machine):
    """A node with GPUs like the one that was measured or assumed; how they are linked is assumed."""

    schemes = GPU_SCHEMES

    cost: StepCost
    """Cost of a gradient on rows that the host sends, launched kernel by kernel."""

    graph_cost: StepCost
    """Cost of a gradient on rows that lie on the GPU, as a CUDA graph."""

    size: float
    """Bytes of the parameters."""

    link: Link
    copy_bandwidth: float
    """Bytes per second between the GPU and the host."""

    holds_rows: bool = True
    """Whether all rows fit on each GPU, where the strategy has them there."""

    def step(self, scheme: Scheme, workers: int, rows: float) -> float:
        del workers
        return (self.graph_cost if self._has_rows(scheme) else self.cost).seconds(rows)

    def exchange(self, scheme: Scheme, workers: int) -> float:
        """Return the time of an exchange, with the optimizer's step unless it belongs to local steps."""
        own = 0.0 if scheme.has_local_steps else self.update(scheme, workers)
        if scheme.strategy == "parameter-server":
            return server_exchange(workers, self.size, self.copy_bandwidth, scheme.arrays) + own
        return self.link.all_reduce(workers, scheme.arrays * self.size) + own

    def update(self, scheme: Scheme, workers: int) -> float:
        """Return the time of an optimizer's step: the server's on the host, or the one that each GPU takes itself."""
        del workers
        if not scheme.steps_on_device:
            return self.update_seconds
        step = ADAMW_ARRAYS * self.size / DEVICE_BANDWIDTH
        # Parameters and both moments, there and back, once in many steps; the server has them in every round.
        commit = 6 * self.size / self.copy_bandwidth / MAX_STEPS
        return step if scheme.strategy == "parameter-server" else step + commit

    def state_bytes(self, scheme: Scheme) -> float:
        """Return the bytes of both moments and of each parameter's decay, where a GPU takes the optimizer's step."""
        return 3 * self.size if scheme.steps_on_device else 0.0

    def feed(self, scheme: Scheme, workers: int) -> float:
        """Return the rows per second that each worker can read: no limit where they lie on the GPU."""
        return math.inf if self._has_rows(scheme) else super().feed(scheme, workers)

    def _has_rows(self, scheme: Scheme) -> bool:
        return self.holds_rows and scheme.steps_on_device
