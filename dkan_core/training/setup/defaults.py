"""Defaults of the settings that are None, chosen from the data and the machine."""

import logging
from collections.abc import Sequence

from dkan_core.config import ResolvedStrategy, ResolvedTrainConfig, TrainConfig
from dkan_core.config.strategies import DESCRIPTIONS, ONE_NODE, averages_parameters
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.order import slice_of, steps_per_epoch
from dkan_core.errors import ConfigError
from dkan_core.model.kernels import check_kernel, describe_kernel
from dkan_core.tracking.mlflow.client import check_mlflow
from dkan_core.training.communication.process_group import backend_for_devices
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.training.setup.additive_fit_limits import needs_no_gradients
from dkan_core.training.setup.early_checks import check_label_weights, check_workers
from dkan_core.training.setup.model_parallel_checks import (
    check_model_parallel_sizes,
    check_no_sparse_columns,
    tensor_parallel_size,
)
from dkan_core.training.setup.monotone import parse_monotone
from dkan_core.training.setup.placement import choose_eval_device, rank_devices, worker_devices
from dkan_core.training.setup.search_space import searches_architecture
from dkan_core.training.setup.sizing import (
    CENTERS,
    DROPOUT,
    batch_rows,
    epoch_count,
    grid_range,
    network_size,
    rarer_class_rows,
)
from dkan_core.utils.extras import require
from dkan_core.utils.messages import counted, flag

BASE_BATCH = 512
# Without it, AP was 0.001 lower, the mean over ten data sets. Additive models gained nothing.
EMA_DECAY = 0.5
# Half of it lost 0.007 of AP, the mean over three data sets.
BASE_LR = 4e-3
# The rules alone would give large batches a rate that diverges; see ``resolve``.
MAX_LR = 1e-2
# Factor of an additive model's rate: with no layers behind the tables, nothing amplifies a step.
ADDITIVE_LR = 5.0
# Factor when training starts from a model: new rows should add to what it learned, not undo it.
CONTINUING_LR = 0.1
# Exponent of the batch size, by ``lr_scaling``.
EXPONENTS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
# Steps between two exchanges where parameters are averaged. In a prototype with four workers, averaging every 8 steps
# lost 0.007 of AP against one worker, every 64 steps 0.012.
DEFAULT_INTERVAL = 8
# Each process inherits two descriptors for every other one, and a message takes 253.
MAX_WORKERS = 100

logger = logging.getLogger(__name__)


def resolve_for(config: TrainConfig, prepared: PreparedData, torchrun: TorchRun | None = None) -> ResolvedTrainConfig:
    """Fill in what is None for a data set; see ``resolve``.

    Args:
        config: Settings as given.
        prepared: The data set.
        torchrun: The environment that torchrun has set up, if any.

    Raises:
        ConfigError: As ``resolve`` does, or a setting names a column that the data do not have.
    """
    train = prepared.splits["train"]
    found = resolve(
        config,
        train.rows,
        len(prepared.labels),
        torchrun,
        rarer_rows=rarer_class_rows(train),
        needs_gradients=not needs_no_gradients(config, prepared),
    )
    check_no_sparse_columns(found, prepared.preprocessor)
    if found.model == "additive" and prepared.preprocessor.sparse:
        name = prepared.preprocessor.sparse[0].name
        raise ConfigError(
            f"model additive: column {name!r} holds IDs, which have no curve; choose model auto, or prepare "
            f"with {flag('drop', name)}"
        )
    parse_monotone(found.monotone, [each.name for each in prepared.preprocessor.numeric])
    return found


def resolve(
    config: TrainConfig,
    rows: int,
    labels: int = 1,
    torchrun: TorchRun | None = None,
    *,
    rarer_rows: float | None = None,
    needs_gradients: bool = True,
) -> ResolvedTrainConfig:
    """Fill in what is None and check the rest against the data and the machine.

    - strategy: allreduce under torchrun, where a server on one node would be the slowest link; otherwise
      parameter-server if mode is not sync; single with one worker, where nothing is to be aggregated: on one GPU the
      steps need no host, and on a CPU a server would read and write every parameter in another process, which took a
      seventh to a fifth of a run; allreduce if each worker has its own GPU, as sums between GPUs spare each step the
      way through the host; else parameter-server, since it survives the death of any process.
    - device: CUDA where there is one; in the result, one device per worker.
    - workers: one per GPU; one on the CPU; under torchrun, one per rank.
    - eval_device: a GPU that no worker has, unless the workers' are named, else the first worker's device.
    - tensor_parallel_size: 2 with strategy hybrid.
    - sync_interval: 1 where gradients are aggregated, 8 where parameters are.
    - batch_size: batch_size_per_worker times the workers where that is given, else the power of two at or below 2.8
      times the root of the rows, from 128 to 65,536.
    - members and hidden: 4 of one layer of 128 units below 16,000 rows, 2 of 128 below 128,000, then 1 of 256: the more
      rows, the less two networks differ.
    - num_centers: 8. dropout: 0.2.
    - architecture_search: from 2,000 rows on, with model auto, where none of hidden, num_centers and dropout is given;
      what it finds replaces them (``architecture_search``); up to 30,000 rows, useless columns are ignored as well
      (``feature_selection``). No search with ``init_from`` or a strategy that divides the model.
    - grid_min and grid_max: -3 and 3 below 8,000 rows of the rarer class, taken as half of all where
      it is not known; else, and with ``model="fastkan"``, -2 and 2.
    - learning_rate: 0.004 up to 512 rows a batch, growing with the batch size by ``lr_scaling``, at most 0.01 by any
      rule: AdamW's steps do not shrink with the gradient's noise, so what diverges in small batches does in large ones.
      Five times that with ``model="additive"``; a tenth with ``init_from``.
    - ema_decay: 0.5; 0 with ``model="additive"``.
    - epochs: enough to see 1.5 million rows, at most 10, at least 3; more, up to 20, where that is under 800 steps.
      One where an additive model needs no gradients, as its tables are fitted again.
    - quality: its factors (``QUALITIES``) on members, hidden, batch size and epochs.

    Raises:
        ConfigError: There is no such GPU, settings exclude each other, there are more workers than rows of a batch,
            another number of label weights than labels, or of slice weights than workers, they do not fit what
            torchrun has started, or an extra or the native extension is missing.
    """
    check_label_weights(config, labels)
    if config.tensorboard:
        require("tensorboard", "tensorboard")
    check_mlflow(config)
    if config.refit and torchrun is not None:
        raise ConfigError("refit: not supported under torchrun; leave it out, or train on one node")
    devices = worker_devices(config) if torchrun is None else rank_devices(config, torchrun)
    for device in devices:
        check_kernel(config.kernel, device)
    strategy = _strategy(config, devices, torchrun)
    workers = len(devices)
    check_workers(config, strategy, workers)
    _check_rows(workers, rows, torchrun)
    batch_size = batch_rows(config, workers, rows)
    _check_slices(config.slice_weights, workers, batch_size)
    members, hidden = network_size(config, rows)
    grid_min, grid_max = grid_range(config, rows / 2 if rarer_rows is None else rarer_rows)
    epochs = epoch_count(config, rows, batch_size, needs_gradients=needs_gradients)
    resolved = {
        "members": members,
        "hidden": hidden,
        "num_centers": config.num_centers or CENTERS,
        "dropout": DROPOUT if config.dropout is None else config.dropout,
        "architecture_search": searches_architecture(config, rows),
        "grid_min": grid_min,
        "grid_max": grid_max,
        "strategy": strategy,
        "sync_interval": config.sync_interval
        or (DEFAULT_INTERVAL if averages_parameters(strategy, config.mode) else 1),
        "tensor_parallel_size": tensor_parallel_size(config, strategy),
        "device": ",".join(devices),
        "eval_device": choose_eval_device(config, devices),
        "workers": workers,
        "batch_size": batch_size,
        "batch_size_per_worker": None,
        "learning_rate": _learning_rate(config, batch_size),
        "ema_decay": _ema_decay(config),
        "epochs": min(epochs, config.schedule_epochs or epochs),
    }
    found = ResolvedTrainConfig(**{**vars(config), **resolved})
    check_model_parallel_sizes(found, torchrun)
    if config.data_in == "device" and not found.may_hold_rows:
        raise ConfigError(
            f"data_in device: with strategy {strategy} on {found.device} no GPU takes steps by itself; leave it at auto"
        )
    return found


def log_choices(asked: TrainConfig, config: ResolvedTrainConfig, rows: int) -> None:
    """Log the main settings, the reason for the strategy, and where limits change what was asked for.

    Args:
        asked: Settings as given.
        config: Resolved settings.
        rows: Rows of the train split.
    """
    logger.info("strategy %s: %s", config.strategy, DESCRIPTIONS[config.strategy, config.mode])
    logger.info(
        "training: device %s, workers %d, batch size %d, learning rate %.2g, epochs %d",
        ", ".join(dict.fromkeys(config.devices)),
        config.workers,
        config.batch_size,
        config.learning_rate,
        config.epochs,
    )
    logger.info("kernel %s", describe_kernel(config.kernel, config.device))
    by_rule = scaled_learning_rate(config.batch_size, config.lr_scaling)
    if asked.learning_rate is None and config.init_from is None and by_rule > MAX_LR:
        logger.info(
            "learning rate capped: %s scaling to batches of %d rows would give %.2g; the limit is %.2g, and "
            "--learning-rate sets another",
            config.lr_scaling,
            config.batch_size,
            config.learning_rate * by_rule / MAX_LR,
            config.learning_rate,
        )
    between = max(1, steps_per_epoch(rows, config.batch_size) // config.evaluations_per_epoch)
    # A round ends with its epoch at the latest, so that each epoch has an evaluation.
    if config.evaluations_per_epoch > 1 and config.sync_interval > between:
        logger.warning(
            "some of the %d evaluations per epoch are left out, as there is none during a round of %d local steps; "
            "%s leaves out none",
            config.evaluations_per_epoch,
            config.sync_interval,
            flag("sync-interval", between),
        )


def scaled_learning_rate(batch_size: int, lr_scaling: str) -> float:
    """Return the learning rate for a batch size by a scaling rule, before it is limited to ``MAX_LR``.

    >>> [round(scaled_learning_rate(8192, rule), 3) for rule in ("none", "sqrt", "linear")]
    [0.004, 0.016, 0.064]
    """
    growth: float = max(1.0, batch_size / BASE_BATCH) ** EXPONENTS[lr_scaling]
    return BASE_LR * growth


def _check_rows(workers: int, rows: int, torchrun: TorchRun | None) -> None:
    if workers > rows:
        raise ConfigError(f"workers {workers}: the train split has only {counted(rows, 'row')}")
    if workers > MAX_WORKERS and torchrun is None:
        raise ConfigError(f"workers {workers}: one launcher starts at most {MAX_WORKERS}; use torchrun for more")


def _check_slices(weights: Sequence[float], workers: int, batch_size: int) -> None:
    """Check that every worker has a row of a batch."""
    if workers > batch_size:
        raise ConfigError(f"workers {workers}: more than the {counted(batch_size, 'row')} of a batch")
    for rank in range(workers):
        start, stop = slice_of(batch_size, 0, batch_size=batch_size, rank=rank, workers=workers, weights=weights)
        if start == stop:
            raise ConfigError(f"slice_weights: worker {rank} has no row of a batch of {batch_size}, got {weights}")


def _learning_rate(config: TrainConfig, batch_size: int) -> float:
    if config.learning_rate is not None:
        return config.learning_rate
    rate = learning_rate_from_scratch(config, batch_size)
    return rate if config.init_from is None else CONTINUING_LR * rate


def learning_rate_from_scratch(config: TrainConfig, batch_size: int) -> float:
    """Return the default learning rate of training that starts from random weights."""
    by_rule = min(MAX_LR, scaled_learning_rate(batch_size, config.lr_scaling))
    return ADDITIVE_LR * by_rule if config.model == "additive" else by_rule


def _ema_decay(config: TrainConfig) -> float:
    if config.ema_decay is not None:
        return config.ema_decay
    return 0.0 if config.model == "additive" else EMA_DECAY


def _default_strategy(config: TrainConfig, devices: Sequence[str]) -> ResolvedStrategy:
    if config.mode != "sync":
        return "parameter-server"
    if len(devices) == 1:
        return "single"
    # Where each worker has a GPU of its own, sums between GPUs spare each step the way through the host.
    return "parameter-server" if backend_for_devices(devices) == "gloo" else "allreduce"


def _strategy(config: TrainConfig, devices: Sequence[str], torchrun: TorchRun | None) -> ResolvedStrategy:
    if torchrun is None:
        return _default_strategy(config, devices) if config.strategy == "auto" else config.strategy
    if config.strategy in ONE_NODE:
        raise ConfigError(
            f"strategy {config.strategy}: torchrun has started {torchrun.size} ranks; choose allreduce, ring, ddp or "
            "local-sgd, or start one process without torchrun"
        )
    return "allreduce" if config.strategy == "auto" else config.strategy
