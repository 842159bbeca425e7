"""Which device each process of a run computes on, and with how many threads."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.utils.messages import counted
from dkan_core.utils.resources import available_cores

NVIDIA_DRIVER = Path("/dev/nvidiactl")
"""Exists if there is an NVIDIA driver and, in a container, if the container has a GPU."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run compute.

    Args:
        workers: The device of each worker.
        evaluator: The evaluator's device.
        threads: Threads of each worker.
    """

    workers: tuple[str, ...]
    evaluator: str
    threads: int

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, torchrun: TorchRun | None = None) -> "Placement":
        """Return the placement of a resolved config."""
        workers = config.devices
        if torchrun is not None and torchrun.has_own_gpu and "cpu" not in workers:
            # Each rank sees only its own GPU, as number 0. Settings keep the node's numbers, which show that no two are
            # the same.
            workers = ("cuda:0",) * len(workers)
        # Only this node's ranks share its cores.
        on_cpu = workers[: torchrun.local_size if torchrun else None].count("cpu")
        return cls(workers, config.eval_device, threads_per_worker(on_cpu) if on_cpu else 1)

    def device_of(self, role: str, rank: int) -> str:
        """Return the device of a process."""
        return {"evaluator": self.evaluator, "server": "cpu"}.get(role) or self.workers[rank]


def worker_devices(config: TrainConfig) -> list[str]:
    """Return the device of each worker.

    Raises:
        ConfigError: There is no such GPU, or the number of workers differs from that of devices.
    """
    gpus = visible_gpus()
    kind = _device_kind(config, gpus)
    if kind == "cpu":
        return ["cpu"] * (config.workers or 1)
    if kind == "cuda":
        if not gpus:
            raise ConfigError("device cuda: no GPU is visible to torch; choose device cpu, or check the driver")
        workers = config.workers or gpus
        # Several workers may share a GPU only if devices are named: each needs memory for the whole model.
        if workers > gpus:
            raise ConfigError(
                f"workers {workers}: only {counted(gpus, 'visible GPU')}; for several workers on one, name each one's "
                "device, as in --device cuda:0,cuda:0"
            )
        return [f"cuda:{rank}" for rank in range(workers)]
    devices = kind.split(",")
    if config.workers not in (None, len(devices)):
        raise ConfigError(f"workers {config.workers}: device names {len(devices)} devices, one per worker: {kind}")
    return [_visible_device("device", device, gpus) for device in devices]


def rank_devices(config: TrainConfig, torchrun: TorchRun) -> list[str]:
    """Return the device of each rank that torchrun has started: on CUDA, the GPU with its local rank.

    Raises:
        ConfigError: There are too few GPUs, or settings do not fit what torchrun has started.
    """
    if config.workers not in (None, torchrun.size):
        ranks = counted(torchrun.size, "rank")
        raise ConfigError(f"workers {config.workers}: torchrun has started {ranks}, one per worker")
    gpus = visible_gpus()
    kind = _device_kind(config, gpus)
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device {kind}: under torchrun a rank's device follows from its number; choose cpu or cuda")
    if kind == "cuda" and (1 if torchrun.has_own_gpu else torchrun.local_size) > gpus:
        ranks = counted(torchrun.local_size, "rank")
        raise ConfigError(f"device cuda: torchrun started {ranks} on this machine, which has {counted(gpus, 'GPU')}")
    return [kind if kind == "cpu" else f"cuda:{rank % torchrun.local_size}" for rank in range(torchrun.size)]


def choose_eval_device(config: TrainConfig, workers: list[str]) -> str:
    """Return the evaluator's device: a GPU without a worker, so that evaluating takes no time from training.

    If the settings name GPUs, others may be in use by someone else, and the first worker's is taken.

    Raises:
        ConfigError: There is no such GPU.
    """
    gpus = visible_gpus()
    if config.eval_device != "auto":
        return _visible_device("eval_device", config.eval_device, gpus)
    free = [f"cuda:{index}" for index in range(gpus) if f"cuda:{index}" not in workers]
    return free[0] if free and workers[0] != "cpu" and config.device in ("auto", "cuda") else workers[0]


def threads_per_worker(workers: int) -> int:
    """Return how many threads each worker may use on the cores this process may run on."""
    return max(1, available_cores() // workers)


def visible_gpus() -> int:
    """Return how many GPUs a process can compute on."""
    # Before CUDA is in use, torch counts with NVML, which includes GPUs divided by MIG; but a process sees at most one
    # of all their parts.
    return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0


def _device_kind(config: TrainConfig, gpus: int) -> str:
    """Return what the setting names, or for "auto" CUDA if there is any."""
    if config.device != "auto":
        return config.device
    if not gpus and NVIDIA_DRIVER.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        needs = f"it needs a driver for CUDA {torch.version.cuda}" if torch.version.cuda else "it is a build for CPUs"
        logger.warning(
            "device auto: training on the CPU, although there is an NVIDIA driver: torch %s finds no GPU (%s, and "
            "nvidia-smi shows what is there)",
            *(torch.__version__, needs),
        )
    return "cuda" if gpus else "cpu"


def _visible_device(name: str, device: str, gpus: int) -> str:
    """Return a device with its number, which torch needs to make it the current one.

    Raises:
        ConfigError: There is no such GPU.
    """
    if device == "cpu":
        return device
    number = int(device.partition(":")[2] or 0)
    if number >= gpus:
        raise ConfigError(f"{name} {device}: {counted(gpus, 'GPU')} visible to torch")
    return f"cuda:{number}"
