"""Which models and workers the strategies that divide a model support; errors for others say what to do instead."""

from collections.abc import Sequence
from dataclasses import replace

from dkan_core.config import MODEL_PARALLEL, ResolvedStrategy, ResolvedTrainConfig, TrainConfig
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.errors import ConfigError
from dkan_core.training.communication.rendezvous import TorchRun

DEFAULT_TENSOR_PARALLEL_SIZE = 2


def tensor_parallel_size(config: TrainConfig, strategy: ResolvedStrategy) -> int | None:
    """Return the number of workers that divide each layer with strategy hybrid; None for other strategies.

    Raises:
        ConfigError: The setting is given for another strategy.
    """
    if strategy == "hybrid":
        return config.tensor_parallel_size or DEFAULT_TENSOR_PARALLEL_SIZE
    if config.tensor_parallel_size is not None:
        raise ConfigError(
            f"tensor_parallel_size {config.tensor_parallel_size}: only strategy hybrid takes it, not {strategy}; "
            "with tensor-parallel all workers divide each layer"
        )
    return None


def undivided(config: TrainConfig) -> TrainConfig:
    """Return settings with which one worker trains the same model undivided."""
    if config.strategy not in MODEL_PARALLEL:
        return replace(config, tensor_parallel_size=None)
    return replace(config, strategy="auto", tensor_parallel_size=None, architecture_search=False)


def check_model_parallel_sizes(config: ResolvedTrainConfig, torchrun: TorchRun | None) -> None:
    """Check that workers can divide a model, if the strategy divides it.

    Raises:
        ConfigError: They cannot.
    """
    if config.strategy not in MODEL_PARALLEL:
        return
    if torchrun is None:
        _check_devices(config.strategy, config.devices)
    if config.strategy == "pipeline":
        _check_layers(config)
    else:
        _check_units(config)


def check_model_parallel_settings(config: TrainConfig, strategy: ResolvedStrategy, workers: int | None) -> None:
    """Check as much of a division as is possible before sizes and devices, and maybe workers, are known.

    Raises:
        ConfigError: The workers cannot divide such a model, or the strategy takes no ``tensor_parallel_size``.
    """
    size = tensor_parallel_size(config, strategy)
    if strategy not in MODEL_PARALLEL:
        return
    if config.model == "additive":
        raise ConfigError(f"strategy {strategy}: model additive has no hidden layer to divide; choose allreduce")
    if config.sketch_rank:
        raise ConfigError(
            f"sketch_rank {config.sketch_rank}: strategy {strategy} divides layers that are not sketched; choose "
            "allreduce, or leave the rank out"
        )
    if workers == 1:
        raise ConfigError(f"workers 1: strategy {strategy} divides the model among several; choose single")
    if config.slice_weights:
        raise ConfigError(
            f"slice_weights: the workers of strategy {strategy} divide the model, not only rows; choose allreduce"
        )
    if size is not None and workers is not None and (workers % size or workers == size):
        raise ConfigError(
            f"workers {workers}: strategy hybrid takes a multiple of tensor_parallel_size {size}, at least twice that; "
            "choose tensor-parallel for one copy of the model"
        )


def check_no_sparse_columns(config: ResolvedTrainConfig, encoding: Preprocessor) -> None:
    """Raise ConfigError if a strategy divides the model but cannot divide the weights of columns of IDs."""
    if config.strategy in MODEL_PARALLEL and encoding.sparse:
        raise ConfigError(
            f"strategy {config.strategy}: column {encoding.sparse[0].name!r} holds IDs, whose weights are not divided; "
            "choose allreduce"
        )


def _check_devices(strategy: str, devices: Sequence[str]) -> None:
    gpus = [device for device in devices if device != "cpu"]
    if len(set(gpus)) != len(gpus) or len(gpus) not in (0, len(devices)):
        raise ConfigError(
            f"device {','.join(devices)}: strategy {strategy} takes one GPU per worker, or cpu for all; a device with "
            "two parts of a model saves nothing"
        )


def _check_units(config: ResolvedTrainConfig) -> None:
    size = config.workers_per_copy
    if not config.hidden or any(width % size for width in config.hidden):
        shown = ",".join(map(str, config.hidden))
        raise ConfigError(
            f"hidden {shown or 'none'}: strategy {config.strategy} divides the units of each hidden layer among {size} "
            f"workers; give multiples of {size}"
        )


def _check_layers(config: ResolvedTrainConfig) -> None:
    layers = len(config.hidden) + 1
    if layers < config.workers:
        raise ConfigError(
            f"workers {config.workers}: strategy pipeline gives each worker at least one layer, and hidden "
            f"{','.join(map(str, config.hidden))} makes {layers} layers with the output; take {layers} workers, or "
            "tensor-parallel, which divides the layers themselves"
        )
