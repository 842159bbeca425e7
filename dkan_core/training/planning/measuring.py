"""Measurements for a plan, on one device of this machine, in processes like those of a run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import open_split
from dkan_core.training.communication.messages import with_tuples
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.compute.resident_rows import resident_bytes
from dkan_core.training.planning.device_memory import MemoryNeed, fit_memory
from dkan_core.training.planning.exchanges import SERVER_AVERAGE, SERVER_SYNC, exchange_seconds
from dkan_core.training.planning.formulas import (
    ALLREDUCE,
    ASSUMED_COPY_BANDWIDTH,
    ASSUMED_LAUNCH,
    AVERAGE,
    LINKS,
    LOCAL_SGD,
    SYNC,
    Machine,
    ScalingCurve,
    StepCost,
    fit_step,
)
from dkan_core.training.planning.machines import Cores, Gpus
from dkan_core.training.planning.probes.gradient import WorkerMeasurement
from dkan_core.training.planning.probes.processes import NewProcesses, close_handles, open_probes
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.placement import Placement
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.parameter_store import initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.utils.resources import available_cores, available_memory

# Numbers of processes with which an exchange is measured on the CPU; more lie on a line through the last two.
MEASURED_WORKERS = (1, 2, 4)

# The median of 20 moves by a few percent from one measurement to the next; an exchange takes milliseconds.
EXCHANGE_REPEATS = 20
# How often everything is measured, in turns; the fastest counts: other work on the machine only slows it down.
ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured on this machine."""

    parameters: int
    train_rows: int
    probes: dict[int, WorkerMeasurement]
    """By the number of workers that computed at once."""

    exchanges: dict[str, dict[int, float]]
    """Seconds, by scheme and workers; empty where the workers are GPUs."""

    cores: int
    device_memory: int
    """Bytes of the GPU, or what the machine or container had free."""

    resident_bytes: int
    """Size of the train split on a GPU."""

    @property
    def size(self) -> int:
        """Bytes of the parameters."""
        return 4 * self.parameters

    def costs(self) -> dict[int, StepCost]:
        """Return what gradients cost, by how many workers compute at once."""
        return {count: fit_step(probed.small, probed.large) for count, probed in self.probes.items()}

    def graph_cost(self) -> StepCost | None:
        """Return what gradients cost as a CUDA graph, where that was measured."""
        one = self.probes[1]
        small, large = one.graphs or (None, None)
        return fit_step((one.small[0], small), (one.large[0], large)) if small and large else None

    def need(self) -> MemoryNeed:
        """Return what a worker's step needs of its device."""
        one = self.probes[1]
        return fit_memory((one.small[0], one.small_memory), (one.large[0], one.memory))

    def machine(self, link: str, gpu_rows_per_second: float | None = None, *, holds_rows: bool = True) -> Machine:
        """Return the costs that follow from it.

        Args:
            link: How the GPUs are linked.
            gpu_rows_per_second: Rate of one GPU that was not measured here; it takes the place of the measured one.
            holds_rows: Whether all rows fit on each GPU.
        """
        costs = self.costs()
        one = self.probes[1]
        if one.copy_bandwidth is None and gpu_rows_per_second is None:
            return Cores(
                cores=self.cores,
                steps=costs,
                exchanges={name: ScalingCurve(seconds) for name, seconds in self.exchanges.items()},
                update_seconds=one.update,
                feed_rows=one.feed,
            )
        cost = costs[1] if one.copy_bandwidth else StepCost(launch=ASSUMED_LAUNCH, rate=costs[1].rate)
        graph_cost = self.graph_cost() or cost
        if gpu_rows_per_second is not None:
            cost, graph_cost = (replace(each, rate=gpu_rows_per_second) for each in (cost, graph_cost))
        return Gpus(
            cores=self.cores,
            cost=cost,
            graph_cost=graph_cost,
            size=self.size,
            link=LINKS[link],
            copy_bandwidth=one.copy_bandwidth or ASSUMED_COPY_BANDWIDTH,
            holds_rows=holds_rows,
            update_seconds=one.update,
            feed_rows=one.feed,
        )


def measure(
    data: Path, manifest: PreparedData, config: ResolvedTrainConfig, counts: Sequence[int], *, cpu_workers: bool
) -> Measurements:
    """Measure one device, and where workers are to share the cores also several at once and their exchanges.

    Args:
        data: Prepared folder.
        manifest: Its manifest.
        config: Resolved settings for one worker.
        counts: Workers that are to be predicted.
        cpu_workers: Whether they share the cores of this machine.
    """
    cores = available_cores()
    with open_split(data, manifest, "train") as reader:
        resident = resident_bytes(reader)
    spec = _process_spec(data, manifest, config)
    try:
        with open_probes() as new_processes:
            together = [count for count in counts if count <= cores] if cpu_workers else [1]
            rounds = []
            for _ in range(ROUNDS):
                # Everything once, then everything again: a disturbance of some seconds does not hit both.
                probes = {}
                for count in together:
                    found = _probe_each(new_processes, spec, [spec.device] * count, cores // count)
                    # A step lasts until the slowest worker is done.
                    probes[count] = max(found, key=WorkerMeasurement.seconds)
                size = 4 * spec.shape.parameters
                rounds.append((probes, _exchanges(new_processes, size, max(counts)) if cpu_workers else {}))
    finally:
        close_handles(spec)
    return Measurements(
        parameters=spec.shape.parameters,
        train_rows=spec.train_rows,
        probes={
            count: min((probes[count] for probes, _ in rounds), key=WorkerMeasurement.seconds) for count in together
        },
        exchanges={
            name: {count: min(found[name][count] for _, found in rounds) for count in seconds}
            for name, seconds in rounds[0][1].items()
        },
        cores=cores,
        device_memory=(
            available_memory()
            if config.device == "cpu"
            else int(torch.cuda.get_device_properties(config.device).total_memory)
        ),
        resident_bytes=resident,
    )


def _process_spec(data: Path, manifest: PreparedData, config: ResolvedTrainConfig) -> ProcessSpec:
    """Return the spec of a process that measures the model that ``train`` would choose."""
    rows = manifest.splits["train"].rows
    with open_split(data, manifest, "train") as reader:
        architecture = choose_architecture(reader, manifest, config)
    model = untrained_model(architecture, manifest, config)
    values_P = flatten(model).numpy()
    shape = MemoryShape(parameters=len(values_P), workers=1)
    memory = create_memory(shape)
    initialize_store(memory, values_P)
    return ProcessSpec(
        role="gradient-probe",
        prepared=str(data.resolve()),
        fingerprint=manifest.fingerprint,
        run="",
        config=config,
        model=architecture.to_dict(),
        train_rows=rows,
        groups=parameter_groups(model, config, rows),
        shape=shape,
        memory=memory.handle,
        device=config.device,
        wakeups={"server": os.pipe()},
    )


def _probe_each(
    new_processes: NewProcesses, spec: ProcessSpec, devices: Sequence[str], threads: int
) -> list[WorkerMeasurement]:
    """Return what processes find that measure at the same time, one on each device, with even slices."""
    config = replace(spec.config, batch_size=max(1, spec.config.batch_size // len(devices)))
    with new_processes() as processes:
        for rank, device in enumerate(devices):
            processes.start_process(replace(spec, rank=rank, device=device, threads=threads, config=config))
        reports = processes.wait_for_reports(len(devices))
    return [WorkerMeasurement(**with_tuples(report)) for report in reports]


def measure_devices(data: Path, manifest: PreparedData, config: ResolvedTrainConfig) -> list[WorkerMeasurement]:
    """Measure each worker's device while the others compute, too."""
    placement = Placement.from_config(config)
    spec = _process_spec(data, manifest, replace(config, workers=1, slice_weights=()))
    try:
        with open_probes() as new_processes:
            rounds = [_probe_each(new_processes, spec, placement.workers, placement.threads) for _ in range(ROUNDS)]
    finally:
        close_handles(spec)
    return [min(found, key=WorkerMeasurement.seconds) for found in zip(*rounds, strict=True)]


def _exchanges(new_processes: NewProcesses, size: int, most: int) -> dict[str, dict[int, float]]:
    """Return the measured time of each scheme's exchange on the CPU, by the number of workers."""
    found: dict[str, dict[int, float]] = {}
    measured = {SYNC: SERVER_SYNC, AVERAGE: SERVER_AVERAGE, ALLREDUCE: "allreduce", LOCAL_SGD: "allreduce"}
    for scheme, exchange in measured.items():
        first = 1 if scheme.strategy == "parameter-server" else 2
        found[scheme.name] = {
            count: exchange_seconds(new_processes, exchange, scheme.arrays * size, ["cpu"] * count, EXCHANGE_REPEATS)
            for count in MEASURED_WORKERS
            if first <= count <= max(first, most)
        }
    return found
