"""Cost of a training step, by formulas: times in seconds, sizes in bytes, bandwidths in bytes per second.

A strategy's round is some steps that each worker takes alone, each on its slice of a global batch, and an exchange.
Rows are read ahead in a thread, beside both.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dkan_core.config import ResolvedStrategy
from dkan_core.data.loading.order import steps_per_epoch

# A parameter server that aggregates what GPUs have copied to it, assumed: memory with eight channels is read at about
# half its peak, and a pipe wakes a process within tens of microseconds.
HOST_BANDWIDTH, SERVER_LATENCY = 60e9, 60e-6

# Seconds of a GPU's step without rows where no GPU was measured: some hundred kernels, each launched in 5 to 10 us.
ASSUMED_LAUNCH = 1e-3

# Bytes per second between a GPU and the host where no GPU was measured: PCIe 4.0 with 16 lanes, less its overhead.
ASSUMED_COPY_BANDWIDTH = 20e9

# Bandwidth of a GPU's memory, assumed: an A100's; newer ones have more. AdamW reads four arrays and writes three.
DEVICE_BANDWIDTH = 2e12
ADAMW_ARRAYS = 7

# Least share of a gradient's measured time that counts for its rows: through noise, a larger slice may seem as fast as
# a small one, and its rate would be infinite.
MIN_ROW_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Time of one gradient on one device: the same for every step, and more for every row."""

    launch: float
    """Seconds of a step without rows."""

    rate: float
    """Rows per second after that."""

    def seconds(self, rows: float) -> float:
        """Return the time of a gradient on ``rows`` rows.

        >>> StepCost(launch=0.001, rate=1e6).seconds(4000)
        0.005
        """
        return self.launch + rows / self.rate

    def __str__(self) -> str:
        return f"{1e3 * self.launch:.2f} ms + rows / {self.rate:,.0f} a second"


def fit_step(small: tuple[int, float], large: tuple[int, float]) -> StepCost:
    """Return the cost that two measured (rows, seconds) lie on; in noise, one that the larger lies on.

    >>> fit_step((1000, 0.002), (4000, 0.005))
    StepCost(launch=0.001, rate=1000000.0)
    """
    (rows, seconds), (more_rows, more_seconds) = small, large
    most = more_seconds / more_rows
    rise = (more_seconds - seconds) / (more_rows - rows) if more_rows > rows else most
    # No more than without any launch time, so that launch time is never negative.
    per_row = min(most, max(rise, MIN_ROW_SHARE * most))
    return StepCost(launch=max(0.0, more_seconds - more_rows * per_row), rate=1 / per_row)


@dataclass(frozen=True, kw_only=True)
class Link:
    """How GPUs of a node talk to each other."""

    latency: float
    bandwidth: float

    def all_reduce(self, workers: int, size: float) -> float:
        """Return the time to sum ``size`` bytes over workers.

        >>> Link(latency=0.0, bandwidth=1e9).all_reduce(4, 1e9)
        1.5
        """
        return 0.0 if workers == 1 else self.latency + 2 * (workers - 1) / workers * size / self.bandwidth


# Assumed, not measured.
LINKS = {"nvlink": Link(latency=24e-6, bandwidth=280e9), "pcie4": Link(latency=45e-6, bandwidth=20e9)}


def server_exchange(workers: int, size: float, copy_bandwidth: float, arrays: int = 1) -> float:
    """Return the time of aggregating ``size`` bytes of each GPU in the host's memory, without the optimizer's step.

    Args:
        workers: GPUs.
        size: Bytes of the parameters.
        copy_bandwidth: Bandwidth of a copy between a GPU and the host.
        arrays: How many times ``size`` is aggregated.
    """
    # To the host and back; there, what each worker pushed is read, and the sum read and written.
    return 2 * arrays * size / copy_bandwidth + 3 * workers * arrays * size / HOST_BANDWIDTH + SERVER_LATENCY


class ScalingCurve:
    """Seconds by number of workers: measured at some, a line between and beyond; more workers never cost less.

    >>> ScalingCurve({1: 1.0, 2: 2.0, 4: 3.0}).at(3), ScalingCurve({1: 1.0, 2: 2.0, 4: 3.0}).at(8)
    (2.5, 5.0)
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.workers = sorted(seconds)
        self.seconds = np.maximum.accumulate([seconds[count] for count in self.workers])

    def at(self, workers: int) -> float:
        """Return the time with ``workers`` workers."""
        last = self.workers[-1]
        if workers <= last or len(self.workers) == 1:
            return float(np.interp(workers, self.workers, self.seconds))
        # Measured on a few cores: more processes than that would measure the scheduler rather than the exchange.
        slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.workers[-2])
        return float(self.seconds[-1] + slope * (workers - last))


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A way to train that is predicted."""

    name: str
    strategy: ResolvedStrategy
    mode: Literal["sync", "average"] = "sync"
    has_local_steps: bool = False
    """Whether workers take several steps between two exchanges."""

    arrays: int = 1
    """How many times the parameters' bytes an exchange aggregates."""

    most_workers: int = 1024

    @property
    def steps_on_device(self) -> bool:
        """Whether a GPU takes the optimizer's step itself, on rows that lie there as well."""
        return self.has_local_steps or self.strategy != "parameter-server"


SYNC = Scheme(name="parameter-server sync", strategy="parameter-server")
# Three arrays: the parameters and both moments of AdamW.
AVERAGE = Scheme(
    name="parameter-server average", strategy="parameter-server", mode="average", has_local_steps=True, arrays=3
)
ALLREDUCE = Scheme(name="allreduce", strategy="allreduce")
LOCAL_SGD = Scheme(name="local-sgd", strategy="local-sgd", has_local_steps=True, arrays=3)
SINGLE = Scheme(name="single", strategy="single", most_workers=1)
# In the order of preference where they are about as fast: first those that equal one process with the global batch, and
# of them what ``train`` takes by default.
SCHEMES = (SYNC, ALLREDUCE, SINGLE, AVERAGE, LOCAL_SGD)
GPU_SCHEMES = (ALLREDUCE, SYNC, SINGLE, LOCAL_SGD, AVERAGE)


@dataclass(frozen=True, kw_only=True)
class Machine(ABC):
    """Costs of steps, exchanges and rows on a machine with some number of workers."""

    schemes: ClassVar[tuple[Scheme, ...]] = SCHEMES
    """In the order of preference."""

    cores: int
    update_seconds: float
    """Time of the optimizer's step in one process."""

    feed_rows: float
    """Rows per second that one worker can read."""

    @abstractmethod
    def step(self, scheme: Scheme, workers: int, rows: float) -> float:
        """Return the time of a gradient on ``rows`` rows in each worker."""

    def state_bytes(self, scheme: Scheme) -> float:
        """Return the bytes of what the optimizer keeps on a worker's device, apart from parameters and gradients."""
        del scheme
        return 0.0

    @abstractmethod
    def exchange(self, scheme: Scheme, workers: int) -> float:
        """Return the time of an exchange, with the optimizer's step where that follows."""

    def update(self, scheme: Scheme, workers: int) -> float:
        """Return the time of an optimizer's step that each worker takes alone; workers beyond the cores take turns."""
        del scheme
        return self.update_seconds * max(1.0, workers / self.cores)

    def feed(self, scheme: Scheme, workers: int) -> float:
        """Return the rows per second that each worker can read."""
        del scheme
        return self.feed_rows * min(1.0, self.cores / workers)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction for a scheme with some number of workers."""

    scheme: str
    workers: int
    step_seconds: float
    """Time of a global batch, including its share of the exchange."""

    compute_seconds: float
    """The part of it that the gradient takes."""

    rows_per_second: float
    """Speed of all workers together."""

    efficiency: float
    """Share of the time that goes into gradients."""

    steps_per_epoch: int
    bottleneck: str
    """"compute", "exchange", "update" (the optimizer's step) or "feed"."""


def predict(
    machine: Machine, scheme: Scheme, workers: int, *, batch_size: int, interval: int, train_rows: int
) -> Prediction:
    """Predict one line of the plan; ``interval`` is the steps between two exchanges of a scheme with local steps."""
    interval = interval if scheme.has_local_steps else 1
    rows = batch_size / workers
    compute = machine.step(scheme, workers, rows)
    beside = machine.exchange(scheme, workers) + (
        interval * machine.update(scheme, workers) if scheme.has_local_steps else 0.0
    )
    feed = machine.feed(scheme, workers)
    share = efficiency(compute, beside, interval, rows=rows, feed=feed)
    # Rows are read in parallel with everything else: only a longer time for reading counts.
    busy = compute + beside / interval
    if rows / feed > busy:
        bottleneck = "feed"
    elif beside / interval > compute:
        bottleneck = "update" if 2 * interval * machine.update(scheme, workers) > beside else "exchange"
    else:
        bottleneck = "compute"
    return Prediction(
        scheme=scheme.name,
        workers=workers,
        step_seconds=compute / share,
        compute_seconds=compute,
        rows_per_second=batch_size * share / compute,
        efficiency=share,
        steps_per_epoch=steps_per_epoch(train_rows, batch_size),
        bottleneck=bottleneck,
    )


def efficiency(step: float, exchange: float, interval: int, *, rows: float, feed: float) -> float:
    """Return the share of the time that goes into gradients: H t / (H t + x) x min(1, feed / wanted).

    Args:
        step: t, of a gradient.
        exchange: x, all else that a round costs.
        interval: H, steps of a round.
        rows: Rows of a worker's slice.
        feed: Rows per second that a worker can read; wanted are those that it takes without waiting for them.

    >>> efficiency(0.010, 0.010, 1, rows=100, feed=1e9), efficiency(0.010, 0.010, 1, rows=100, feed=2500)
    (0.5, 0.25)
    """
    share = interval * step / (interval * step + exchange)
    wanted = rows / step * share
    return share * min(1.0, feed / wanted)
