"""Startup of a process that computes: its threads, its device, its rows."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.loading.loader import open_split
from dkan_core.data.loading.tiers import place_on_host
from dkan_core.errors import DataError
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.pinned_memory import copies_to
from dkan_core.training.compute.resident_rows import may_lie_on_device
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.training.state.shared_memory import SharedMemory
from dkan_core.training.state.stopwatch import Stopwatch, TimedBatches
from dkan_core.utils.resources import peak_resident_memory


@dataclass(frozen=True)
class ComputeProcess:
    """What a worker and a collective worker compute with."""

    memory: SharedMemory
    heartbeat: Heartbeat
    rules: UpdateRules
    replica: Replica
    batches: TimedBatches

    @property
    def stopwatch(self) -> Stopwatch:
        """Of this process."""
        return self.batches.stopwatch


@contextmanager
def open_compute_process(spec: ProcessSpec) -> Iterator[ComputeProcess]:
    """Make ready to compute; the heartbeat begins before anything that takes time.

    Raises:
        DataError: The manifest or a shard is missing or damaged.
    """
    device = use_device(spec)
    memory = spec.open_memory()
    heartbeat = Heartbeat(memory, spec.role, spec.rank)
    with open_train_split(spec) as reader:
        stopwatch = Stopwatch(memory.worker_times[spec.rank], peak_memory_of(device))
        if device.type == "cuda":
            # The processor of a machine with GPUs has little else to do.
            reader.threads = spec.threads
        if not may_lie_on_device(spec.config, device):
            place_on_host(reader, spec.config)
        copies = copies_to(device)
        with closing(TimedBatches(reader, spec.config, spec.rank, stopwatch, copies)) as batches:
            yield ComputeProcess(
                memory=memory,
                heartbeat=heartbeat,
                rules=UpdateRules.from_config(spec.config, spec.train_rows, spec.groups),
                replica=Replica.from_architecture(spec.model, _device_of_copy(spec), spec.config.kernel),
                batches=batches,
            )


def use_device(spec: ProcessSpec) -> torch.device:
    """Give this process as many threads as its spec says, and return its device, on CUDA as the current one."""
    # Not one per core of the machine: workers share its cores.
    torch.set_num_threads(spec.threads)
    device = torch.device(spec.device)
    # Otherwise each process would allocate a context on the first GPU as well.
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _device_of_copy(spec: ProcessSpec) -> torch.device:
    """Return where the whole model is: on the host if each device has only a part of it."""
    return torch.device("cpu" if spec.config.workers_per_copy > 1 else spec.device)


def open_train_split(spec: ProcessSpec) -> ShardReader:
    """Open the rows that a process of a run learns from.

    Raises:
        DataError: The manifest or a shard is missing or damaged.
    """
    return open_split(Path(spec.prepared), read_data(spec), "train")


def read_data(spec: ProcessSpec) -> PreparedData:
    """Return the manifest of a run's data: in a refit, the rows of valid are in train as well.

    Raises:
        DataError: It is missing or damaged, or other data have been prepared there since the run began.
    """
    manifest = read_manifest(Path(spec.prepared))
    found = manifest if spec.choices is None else manifest.with_valid_in_train()
    if found.fingerprint != spec.fingerprint:
        raise DataError(
            f"{spec.prepared}: the data changed after the run began; resume it with the original data, or start over"
        )
    return found


def peak_memory_of(device: torch.device) -> Callable[[], int]:
    """Return a function that tells this process's peak memory on a device in bytes; on the CPU, resident memory."""
    return peak_resident_memory if device.type == "cpu" else partial(torch.cuda.max_memory_allocated, device)
