"""``dkan bench sync``: every exchange at several sizes, one after the other in rounds, so that noise hits all alike."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dkan_core.config import TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.training.planning.exchanges import EXCHANGES, SERVER_SYNC, exchange_seconds
from dkan_core.training.planning.probes.processes import open_probes
from dkan_core.training.planning.sizes import parse_size, show_size
from dkan_core.training.setup.placement import visible_gpus, worker_devices
from dkan_core.utils.messages import counted
from dkan_core.utils.progress import progress
from dkan_core.utils.resources import available_cores

FLOAT_BYTES = 4
# From what latency bounds to what bandwidth bounds; the default model has 1 MB.
SIZES = ("64KB", "256KB", "1MB", "4MB", "16MB", "64MB")
# The fewest that exchange anything, and as many as any machine runs at once.
WORKERS = 2
# Medians of these, with three rounds to see how far they are apart, take half a minute.
REPEATS = 10
ROUNDS = 3
# Exchanges are for the processes of one node; more than this is a mistyped number.
MAX_WORKERS = 64
# Exists only on Linux; elsewhere the machine's architecture has to do.
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one exchange of one size."""

    exchange: str
    size: int
    """Bytes that each worker brings."""

    seconds: float
    """Median over the rounds' medians."""

    ratio: float
    """Its time over that of the parameter server's sync, in the median round."""

    @property
    def bandwidth(self) -> float:
        """Bytes of one worker aggregated per second."""
        return self.size / self.seconds


@dataclass(frozen=True, kw_only=True)
class SyncBench:
    """Result of ``bench_sync``."""

    device: str
    workers: int
    repeats: int
    rounds: int
    costs: tuple[Cost, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON, times in seconds and sizes in bytes."""
        return {**asdict(self), "costs": [{**asdict(cost), "bandwidth": cost.bandwidth} for cost in self.costs]}

    def __str__(self) -> str:
        rounds = counted(self.rounds, "round")
        lines = [
            f"device: {self.device}; {self.workers} workers, median of {rounds}, each {self.repeats} times",
            "",
            f"| size | exchange | ms | GB/s | x {SERVER_SYNC} |",
            "|---:|---|---:|---:|---:|",
        ]
        for cost in self.costs:
            figures = f"{1e3 * cost.seconds:.3f} | {cost.bandwidth / 1e9:.3f} | {cost.ratio:.2f}"
            lines.append(f"| {show_size(cost.size)} | {cost.exchange} | {figures} |")
        return "\n".join(lines)

    # At the end of a notebook's cell as well.
    __repr__ = __str__


def bench_sync(
    sizes: Sequence[str] = SIZES,
    *,
    workers: int = WORKERS,
    repeats: int = REPEATS,
    rounds: int = ROUNDS,
    device: str = "auto",
) -> SyncBench:
    """Measure what it costs workers to combine their parameters, by their size in bytes.

    Every figure is taken from processes that do nothing else: with a parameter server they write to its memory, it
    aggregates and steps the optimizer, and they read; the others sum by torch.distributed, with NCCL where each worker
    has a GPU of its own.

    Args:
        sizes: Bytes of the parameters, such as "64KB" (1 KB is 1024 bytes).
        workers: Processes.
        repeats: Exchanges in a round.
        rounds: How often each is measured, in turns.
        device: Where the workers compute, as in ``TrainConfig``; "auto" is the GPUs where there are enough.

    Returns:
        The cost of each way and size, in the order given.

    Raises:
        ConfigError: A size or a number is invalid, or there is no such device.
    """
    if not 2 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers must be from 2 to {MAX_WORKERS}, got {workers}")
    if repeats < 1 or rounds < 1:
        raise ConfigError(f"repeats and rounds must be at least 1, got {repeats} and {rounds}")
    wanted = sorted({parse_size(size) // FLOAT_BYTES * FLOAT_BYTES for size in sizes})
    if not wanted:
        raise ConfigError("sizes: name at least one")
    if device == "auto" and visible_gpus() < workers:
        device = "cpu"
    devices = worker_devices(TrainConfig(workers=workers, device=device))
    seconds = _measure(wanted, devices, repeats, rounds)
    costs = []
    for (name, size), own in seconds.items():
        # Round by round, as a disturbance slows both down.
        ratio = np.median(np.array(own) / np.array(seconds[SERVER_SYNC, size]))
        costs.append(Cost(exchange=name, size=size, seconds=float(np.median(own)), ratio=float(ratio)))
    return SyncBench(
        device=describe_device(devices[0]), workers=workers, repeats=repeats, rounds=rounds, costs=tuple(costs)
    )


def _measure(
    sizes: Sequence[int], devices: Sequence[str], repeats: int, rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Return the medians of each exchange and size, one per round."""
    found: dict[tuple[str, int], list[float]] = {(name, size): [] for size in sizes for name in EXCHANGES}
    with open_probes() as new_processes, progress("exchanges", rounds * len(found), "runs") as advance:
        for _ in range(rounds):
            for (name, size), medians in found.items():
                medians.append(exchange_seconds(new_processes, name, size, devices, repeats))
                advance(1)
    return found


def describe_device(device: str) -> str:
    """Return the name of a device, and what else matters about it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), os.uname().machine)
    return f"{available_cores()} cores of {name}"
