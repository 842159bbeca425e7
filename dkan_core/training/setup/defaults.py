"""The settings a user leaves open, chosen from the number of rows by rules that are written down here."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dkan_core.config import ResolvedStrategy, ResolvedTrainConfig, TrainConfig
from dkan_core.data.loading.loader import slice_of
from dkan_core.errors import ConfigError
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.utils.resources import available_cores

BATCH_PER_ROOT = 2.8
"""Rows of a batch over the root of the train split's rows: see ``resolve``."""
MIN_BATCH = 128
MAX_BATCH = 65_536
BASE_BATCH = 512
BASE_LR = 4e-3
MAX_LR = 1e-2
EXPONENTS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Of the batch size, by ``lr_scaling``."""
ROWS_TO_SEE = 1_500_000
STEPS_TO_TAKE = 800
MIN_EPOCHS = 3
MAX_EPOCHS = 20
DEFAULT_INTERVAL = 8
"""Steps between two exchanges where parameters are averaged."""
MAX_WORKERS = 100
"""Each process is handed two descriptors for every other one, and a message takes 253."""

STRATEGY_REASONS = {
    ("parameter-server", "sync"): (
        "gradients aggregated every step, equal to one process with the global batch; one node, survives the death of "
        "any process"
    ),
    ("parameter-server", "average"): "parameters aggregated every sync interval, weighted by rows",
    ("parameter-server", "async"): (
        "differences aggregated as they come, the stale ones less: no worker waits for another"
    ),
    ("allreduce", "sync"): "gradients summed by torch.distributed every step; several nodes",
    ("ddp", "sync"): "torch's DistributedDataParallel, for reference",
    ("ring", "sync"): "gradients summed around a ring of workers, for comparison",
    ("local-sgd", "sync"): "parameters averaged by torch.distributed every sync interval",
    ("single", "sync"): "one worker, nothing to aggregate",
}
SIZES = ((16_000, 4, 128), (128_000, 2, 128))
"""Rows below which there are so many members of so many hidden units."""
LARGE, PLAIN = (1, 256), (1, 64)
"""Members and hidden units for more rows, and for ``model="fastkan"``."""


def resolve(config: TrainConfig, rows: int, labels: int = 1, torchrun: TorchRun | None = None) -> ResolvedTrainConfig:
    """Fill in what is None and check the rest against the data and the machine.

    - strategy: parameter-server, since it survives the death of any process; allreduce under torchrun, where a server
      on one node would be the slowest link.
    - device: CUDA where there is one; in the result, one device per worker.
    - workers: one per GPU; one on the CPU; under torchrun, one per rank.
    - eval_device: a GPU that no worker has, else the first worker's device.
    - sync_interval: 1 where gradients are aggregated, 8 where parameters are.
    - batch_size: batch_size_per_worker times the workers where that is given, else the power of two at or below 2.8
      times the root of the rows, from 128 to 65,536.
    - members and hidden: 4 of one layer of 128 units below 16,000 rows, 2 of 128 below 128,000, then 1 of 256: the more
      rows, the less two networks differ.
    - learning_rate: 0.004 up to 512 rows a batch, growing with the batch size by ``lr_scaling``, at most 0.01 by any
      rule: AdamW's steps do not shrink with the gradient's noise, so what diverges in small batches does in large ones.
    - epochs: enough to see 1.5 million rows, at most 10, at least 3; more, up to 20, where that is under 800 steps.

    Raises:
        ConfigError: There is no such GPU, settings exclude each other, there are more workers than rows of a batch,
            another number of label weights than labels, or of slice weights than workers, they do not fit what
            torchrun has started, or an extra is missing.
    """
    _check_label_weights(config, labels)
    _check_extras(config)
    strategy = _strategy(config, torchrun)
    devices = worker_devices(config) if torchrun is None else _rank_devices(config, torchrun)
    workers = len(devices)
    _check_workers(workers, strategy, rows, torchrun)
    batch_size = _batch_size(config, workers, rows)
    _check_slices(config.slice_weights, workers, batch_size)
    members, hidden = _network_size(config, rows)
    resolved = {
        "members": members,
        "hidden": hidden,
        "strategy": strategy,
        "sync_interval": _sync_interval(config, strategy),
        "device": ",".join(devices),
        "eval_device": _eval_device(config.eval_device, devices),
        "workers": workers,
        "batch_size": batch_size,
        "batch_size_per_worker": None,
        "learning_rate": _learning_rate(config, batch_size),
        "epochs": config.epochs or _epochs(rows, batch_size),
    }
    return ResolvedTrainConfig(**{**vars(config), **resolved})


def scaled_learning_rate(batch_size: int, lr_scaling: str) -> float:
    """Return the learning rate that a batch size has by a rule, before its limit.

    >>> [round(scaled_learning_rate(8192, rule), 3) for rule in ("none", "sqrt", "linear")]
    [0.004, 0.016, 0.064]
    """
    growth: float = max(1.0, batch_size / BASE_BATCH) ** EXPONENTS[lr_scaling]
    return BASE_LR * growth


def _check_label_weights(config: TrainConfig, labels: int) -> None:
    if config.label_weights and len(config.label_weights) != labels:
        raise ConfigError(f"label_weights: {len(config.label_weights)} numbers; the data has {labels} labels")


def _check_extras(config: TrainConfig) -> None:
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tensorboard is not installed; run: pip install 'dkan[tensorboard]'")


def _check_workers(workers: int, strategy: ResolvedStrategy, rows: int, torchrun: TorchRun | None) -> None:
    if strategy == "single" and workers > 1:
        raise ConfigError(f"workers {workers}: strategy single has one; choose another strategy")
    if workers > rows:
        raise ConfigError(f"workers {workers}: the train split has only {rows} rows")
    if workers > MAX_WORKERS and torchrun is None:
        raise ConfigError(f"workers {workers}: one launcher starts at most {MAX_WORKERS}; use torchrun for more")


def _check_slices(weights: Sequence[float], workers: int, batch_size: int) -> None:
    """Check that every worker has a row of a batch."""
    if workers > batch_size:
        raise ConfigError(f"workers {workers}: more than the {batch_size} rows of a batch")
    if len(weights) not in (0, workers):
        raise ConfigError(f"slice_weights: {len(weights)} numbers; there are {workers} workers")
    for rank in range(workers):
        start, stop = slice_of(batch_size, 0, batch_size=batch_size, rank=rank, workers=workers, weights=weights)
        if start == stop:
            raise ConfigError(f"slice_weights: worker {rank} has no row of a batch of {batch_size}, got {weights}")


def _sync_interval(config: TrainConfig, strategy: ResolvedStrategy) -> int:
    """Return the steps between two exchanges: more than one only where workers step by themselves in between."""
    if strategy != "parameter-server" and config.mode != "sync":
        raise ConfigError(f"mode {config.mode}: only strategy parameter-server has modes, not {strategy}")
    local_steps = config.mode != "sync" or strategy == "local-sgd"
    if config.sync_interval not in (None, 1) and not local_steps:
        raise ConfigError(
            f"sync_interval {config.sync_interval}: gradients are aggregated every step; choose mode average"
        )
    return config.sync_interval or (DEFAULT_INTERVAL if local_steps else 1)


def _learning_rate(config: TrainConfig, batch_size: int) -> float:
    return config.learning_rate or min(MAX_LR, scaled_learning_rate(batch_size, config.lr_scaling))


def describe_strategy(config: ResolvedTrainConfig) -> str:
    """Say what the strategy of a resolved config does, and why it was chosen."""
    return STRATEGY_REASONS[config.strategy, config.mode]


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run compute.

    Args:
        workers: Device of each worker.
        evaluator: Its device.
        threads: Of each worker.
    """

    workers: tuple[str, ...]
    evaluator: str
    threads: int

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, torchrun: TorchRun | None = None) -> "Placement":
        """Return the placement of a resolved config."""
        workers = config.devices
        on_cpu = workers[: torchrun.local_size if torchrun else None].count("cpu")
        return cls(workers, config.eval_device, threads_per_worker(on_cpu) if on_cpu else 1)

    def device_of(self, role: str, rank: int) -> str:
        """Return the device of a process."""
        return {"evaluator": self.evaluator, "server": "cpu"}.get(role) or self.workers[rank]


def worker_devices(config: TrainConfig) -> list[str]:
    """Return the device of each worker.

    Raises:
        ConfigError: There is no such GPU, or the number of workers is another than that of devices.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = config.device if config.device != "auto" else ("cuda" if gpus else "cpu")
    if kind == "cpu":
        return ["cpu"] * (config.workers or 1)
    if kind == "cuda":
        if not gpus:
            raise ConfigError("device cuda: no GPU is visible to torch; use --device cpu or check the driver")
        workers = config.workers or gpus
        if workers > gpus:
            raise ConfigError(
                f"workers {workers}: only {gpus} GPUs are visible; for several workers on one, name each one's device, "
                "as in --device cuda:0,cuda:0"
            )
        return [f"cuda:{rank}" for rank in range(workers)]
    devices = ["cuda:0" if device == "cuda" else device for device in kind.split(",")]
    if config.workers not in (None, len(devices)):
        raise ConfigError(f"workers {config.workers}: device names {len(devices)} devices, one per worker: {kind}")
    for device in devices:
        _check_visible("device", device, gpus)
    return devices


def _check_visible(name: str, device: str, gpus: int) -> None:
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus:
        raise ConfigError(f"{name} {device}: {gpus} GPUs are visible to torch")


def _strategy(config: TrainConfig, torchrun: TorchRun | None) -> ResolvedStrategy:
    if torchrun is None:
        return "parameter-server" if config.strategy == "auto" else config.strategy
    if config.strategy in ("parameter-server", "single"):
        raise ConfigError(
            f"strategy {config.strategy}: torchrun has started {torchrun.size} ranks; choose allreduce, ring, ddp or "
            "local-sgd, or start one process without torchrun"
        )
    return "allreduce" if config.strategy == "auto" else config.strategy


def _rank_devices(config: TrainConfig, torchrun: TorchRun) -> list[str]:
    """Return the device of each rank that torchrun has started: on CUDA, that of its number on its node."""
    if config.workers not in (None, torchrun.size):
        raise ConfigError(f"workers {config.workers}: torchrun has started {torchrun.size} ranks, one per worker")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = config.device if config.device != "auto" else ("cuda" if gpus else "cpu")
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device {kind}: under torchrun a rank's device follows from its number; choose cpu or cuda")
    if kind == "cuda" and torchrun.local_size > gpus:
        raise ConfigError(f"device cuda: torchrun started {torchrun.local_size} ranks here, and there are {gpus} GPUs")
    return [kind if kind == "cpu" else f"cuda:{rank % torchrun.local_size}" for rank in range(torchrun.size)]


def _eval_device(wanted: str, workers: list[str]) -> str:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted != "auto":
        _check_visible("eval_device", wanted, gpus)
        return wanted
    free = [f"cuda:{index}" for index in range(gpus) if f"cuda:{index}" not in workers]
    return free[0] if free and workers[0] != "cpu" else workers[0]


def _network_size(config: TrainConfig, rows: int) -> tuple[int, tuple[int, ...]]:
    """Return the members and the widths of each one's hidden layers."""
    by_rows = next(((members, width) for below, members, width in SIZES if rows < below), LARGE)
    members, width = PLAIN if config.model == "fastkan" else by_rows
    return config.members or members, (width,) if config.hidden is None else config.hidden


def _batch_size(config: TrainConfig, workers: int, rows: int) -> int:
    """Return the rows of a step over all workers, at most all there are."""
    if config.batch_size_per_worker is not None:
        return min(workers * config.batch_size_per_worker, rows)
    wanted = max(MIN_BATCH, min(MAX_BATCH, int(BATCH_PER_ROOT * rows**0.5)))
    return min(config.batch_size or 1 << (wanted.bit_length() - 1), rows)


def _epochs(rows: int, batch_size: int) -> int:
    by_rows = max(MIN_EPOCHS, min(10, round(ROWS_TO_SEE / rows)))
    by_steps = min(MAX_EPOCHS, STEPS_TO_TAKE * batch_size // rows)
    return max(by_rows, by_steps)


def threads_per_worker(workers: int) -> int:
    """Return how many threads each worker may use on the cores this process may run on."""
    return max(1, available_cores() // workers)
