"""Cost of an exchange between workers, measured in real processes that do nothing else.

Shape suffixes: P trainable parameters.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.training.communication.process_group import local_rendezvous, serve_loopback_store
from dkan_core.training.communication.rendezvous import Rendezvous
from dkan_core.training.planning.probes.processes import NewProcesses, close_handles
from dkan_core.training.roles.process_spec import ProcessSpec, process_name
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.parameter_store import initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, WorkerGeneration, create_memory

SERVER_SYNC = "parameter-server sync"
SERVER_AVERAGE = "parameter-server average"
# What is measured, by the settings that a run would have.
EXCHANGES = {
    SERVER_SYNC: TrainConfig(strategy="parameter-server", mode="sync"),
    SERVER_AVERAGE: TrainConfig(strategy="parameter-server", mode="average"),
    "allreduce": TrainConfig(strategy="allreduce"),
    "ring": TrainConfig(strategy="ring"),
}

# Exchanges that are not counted: pages are touched and connections made in them.
WARM_UP = 3


def exchange_seconds(new_processes: NewProcesses, name: str, size: int, devices: Sequence[str], repeats: int) -> float:
    """Return the median time from one exchange to the next, in seconds.

    Args:
        new_processes: Begins a measurement.
        name: A key of ``EXCHANGES``.
        size: Bytes that a worker brings, in whole numbers of 4.
        devices: One per worker.
        repeats: Exchanges, not counting a few to warm up.
    """
    config = _config(name, devices)
    store = None if config.has_server else serve_loopback_store(config.exchange_timeout)
    rendezvous = None if store is None else local_rendezvous(store, config)
    spec = _process_spec(
        config,
        # What is pushed along with the parameters, as the moments in mode average, is part of the size.
        max(1, size // 4 // MemoryShape.from_config(config, 1).pushed),
        steps=WARM_UP + repeats,
        rendezvous=rendezvous,
    )
    role = "exchange-probe" if store is None else "allreduce-probe"
    try:
        with new_processes() as processes:
            if store is None:
                processes.start_process(replace(spec, role="server"))
            for rank, device in enumerate(devices):
                processes.start_process(replace(spec, role=role, rank=rank, device=device))
            reports = processes.wait_for_reports(len(devices))
    finally:
        close_handles(spec)
    # Each counted exchange lasts from the end of the one before it, which for the first is that of the warm-up's last.
    return float(np.median([np.diff(report["times"][WARM_UP - 1 :]) for report in reports]))


def _config(name: str, devices: Sequence[str]) -> ResolvedTrainConfig:
    """Return the settings of a run whose steps have one row per worker."""
    workers = len(devices)
    asked = replace(
        EXCHANGES[name],
        workers=workers,
        batch_size=workers,
        epochs=1,
        # The figures do not depend on it; the parameters, which are random, must not overflow.
        learning_rate=1e-9,
        sync_interval=1,
        device="cpu",
    )
    # Devices are set after resolving, which would fail for GPUs of a plan that this machine does not have.
    return replace(resolve(asked, rows=workers), device=",".join(devices))


def _process_spec(
    config: ResolvedTrainConfig, parameters: int, *, steps: int, rendezvous: Rendezvous | None
) -> ProcessSpec:
    """Return the spec of every process, but for role, rank and device."""
    shape = MemoryShape.from_config(config, parameters)
    memory = create_memory(shape)
    initialize_store(memory, np.random.default_rng(0).standard_normal(parameters, np.float32))
    for record in memory.worker_generations:
        record.write(WorkerGeneration(generation=1))
    names = ["server", "evaluator", *(process_name("worker", rank) for rank in range(config.workers))]
    return ProcessSpec(
        role="",
        prepared="",
        run="",
        config=config,
        model={},
        train_rows=steps * config.workers,
        groups=ParameterGroups(decayed=((0, parameters, 1.0),)),
        shape=shape,
        memory=memory.handle,
        rendezvous=rendezvous,
        wakeups={name: os.pipe() for name in names},
    )
