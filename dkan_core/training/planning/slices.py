"""``dkan plan`` with several devices named: how fast each is, and how many rows of a step to give to it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dkan_core.config import TrainConfig, check_config
from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import ConfigError
from dkan_core.training.planning.bench import describe_device
from dkan_core.training.planning.formulas import StepCost, fit_step
from dkan_core.training.planning.measuring import measure_devices
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.initial_model import with_architecture


@dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """What was measured on each worker's device, and what follows from it."""

    devices: tuple[str, ...]
    costs: tuple[StepCost, ...]
    """Cost of a gradient on each device."""

    batch_size: int
    slice_weights: tuple[int, ...]
    """Rows of a step for each worker, so that all take about the same time."""

    def seconds(self, rows: Sequence[float]) -> float:
        """Return the time of a step's gradient, which is that of the slowest worker."""
        return max(cost.seconds(count) for cost, count in zip(self.costs, rows, strict=True))

    @property
    def speedup(self) -> float:
        """How many times as fast a step's gradients are as with even slices."""
        even = self.batch_size / len(self.devices)
        return self.seconds([even] * len(self.devices)) / self.seconds(self.slice_weights)

    def options(self) -> str:
        """Return the options of ``dkan train``."""
        weights = " ".join(f"--slice-weights {weight}" for weight in self.slice_weights)
        return f"--device {','.join(self.devices)} --batch-size {self.batch_size} {weights}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON, times in seconds."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        lines = [
            f"worker {rank}: {device} ({describe_device(device)}): gradient {cost}"
            for rank, (device, cost) in enumerate(zip(self.devices, self.costs, strict=True))
        ]
        gain = f"gradients of a step {self.speedup:.2f} times as fast as with even slices"
        return "\n".join([*lines, "", f"recommended: {self.options()}", gain])

    # At the end of a notebook's cell as well.
    __repr__ = __str__


def balance_slices(costs: Sequence[StepCost], batch_size: int) -> tuple[int, ...]:
    """Return how many rows of a batch each device takes so that all are done at the same time, at least one each.

    The batch has at least as many rows as there are devices. With launch time l and rate r of each, all take
    T = (B + sum of r l) / (sum of r) where each has r (T - l) rows; one that is not worth a row gets one, and the
    others share the rest.

    >>> balance_slices([StepCost(launch=0.0, rate=3e6), StepCost(launch=0.0, rate=1e6)], 1000)
    (750, 250)
    """
    rows = [1] * len(costs)
    busy = list(range(len(costs)))
    while True:
        left = batch_size - (len(costs) - len(busy))
        launches = sum(costs[rank].rate * costs[rank].launch for rank in busy)
        seconds = (left + launches) / sum(costs[rank].rate for rank in busy)
        shares = {rank: costs[rank].rate * (seconds - costs[rank].launch) for rank in busy}
        # A device whose launch alone takes longer than the whole step of the others has a share below zero.
        worth = [rank for rank in busy if shares[rank] >= 1]
        if worth == busy or not worth:
            break
        busy = worth
    for rank in busy:
        rows[rank] = max(1, int(shares[rank]))
    # What rounding down has left over, at most a row each, goes where most of a row was cut off.
    for rank in sorted(busy, key=lambda rank: rows[rank] - shares[rank])[: batch_size - sum(rows)]:
        rows[rank] += 1
    return tuple(rows)


def plan_slices(prepared: str | Path, config: TrainConfig) -> SlicePlan:
    """Measure the devices that a config names, all at the same time, and say how to cut batches between them.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        config: Settings; ``device`` names one device per worker.

    Returns:
        The cost of a step on each device, and the weights of their slices.

    Raises:
        UserError: The data or a setting is wrong.
    """
    check_config(TrainConfig, config)
    with open_prepared(prepared, "train", "valid") as (data, manifest):
        for split in ("train", "valid"):
            open_split(data, manifest, split).close()
        config = with_architecture(config, manifest, prepared)
        resolved = resolve_for(config, manifest)
        devices = resolved.devices
        if len(devices) < 2:
            raise ConfigError(f"device {config.device}: slices are balanced between several devices; name them all")
        probes = measure_devices(data, manifest, resolved)
    costs = tuple(fit_step(probed.small, probed.large) for probed in probes)
    return SlicePlan(
        devices=devices,
        costs=costs,
        batch_size=resolved.batch_size,
        slice_weights=balance_slices(costs, resolved.batch_size),
    )
