"""Checks of a training's settings that need no prepared data."""

from collections.abc import Sequence
from pathlib import Path

from dkan_core.config import PrepareConfig, ResolvedStrategy, TrainConfig
from dkan_core.config.loading import separated
from dkan_core.config.strategies import averages_parameters
from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.column_types import is_number
from dkan_core.data.source.files import split_sources
from dkan_core.data.source.sources import read_sources
from dkan_core.data.source.times import is_duration, is_time, time_parts
from dkan_core.errors import ConfigError
from dkan_core.training.setup.model_parallel_checks import check_model_parallel_settings
from dkan_core.training.setup.monotone import parse_monotone
from dkan_core.utils.messages import counted


def check_training(
    config: TrainConfig,
    sources: str | Path | Sequence[str | Path] = (),
    labels: str = "",
    split: str = "",
    categorical: str = "",
) -> None:
    """Check settings of ``train`` before any data are prepared, which may take hours.

    Args:
        config: The settings.
        sources: Parquet files, folders or globs that will be prepared; in one text, separated by commas. They are
            opened only where a setting names a column. Default: not known.
        labels: Label columns, separated by commas. Default: not known.
        split: Percentages of rows in train/valid/test. Default: not known.
        categorical: Columns of integers that will be categories, separated by commas.

    Raises:
        ConfigError: Settings exclude each other or name a column that is not there, or no rows are left to test on.
        DataError: Columns are to be read, and a file is missing or broken.
    """
    # The strategy that "auto" becomes depends on the machine; these two accept what the other candidates accept.
    default: ResolvedStrategy = "allreduce" if config.mode == "sync" else "parameter-server"
    check_workers(config, default if config.strategy == "auto" else config.strategy, _known_workers(config))
    check_names(config, sources, labels, categorical)
    check_split(split)


def check_names(config: TrainConfig, sources: str | Path | Sequence[str | Path], labels: str, categorical: str) -> None:
    """Check the columns and labels that settings name; arguments and errors are those of ``check_training``."""
    names = separated(labels)
    if names:
        check_label_weights(config, len(names))
    # With ``init_from``, columns are encoded as in the initial model, whatever their types.
    if sources and config.monotone and not config.init_from:
        others = {*names, *separated(categorical)}
        parse_monotone(config.monotone, [name for name in _numeric_columns(sources) if name not in others])


def check_split(split: str) -> None:
    """Check that percentages such as 70/10/20 leave rows to test on."""
    if split and PrepareConfig(label=("",), split=split).split_percent[2] == 0:
        raise ConfigError(f"split must leave rows to test on, got {split!r}")


def check_workers(config: TrainConfig, strategy: ResolvedStrategy, workers: int | None) -> None:
    """Check that a strategy supports the number of workers and the settings of workers.

    Args:
        config: The settings.
        strategy: The resolved strategy.
        workers: Number of workers; None where the machine decides.

    Raises:
        ConfigError: It does not support them.
    """
    if strategy == "single" and (workers or 1) > 1:
        raise ConfigError(f"workers {workers}: strategy single has one worker; choose another one, such as allreduce")
    if strategy != "parameter-server" and config.mode != "sync":
        raise ConfigError(f"mode {config.mode}: only strategy parameter-server has modes, not {strategy}")
    if config.sync_interval not in (None, 1) and not averages_parameters(strategy, config.mode):
        raise ConfigError(
            f"sync_interval {config.sync_interval}: gradients are aggregated every step; choose mode average"
        )
    check_model_parallel_settings(config, strategy, workers)
    if workers is not None and len(config.slice_weights) not in (0, workers):
        given = counted(len(config.slice_weights), "number")
        raise ConfigError(f"slice_weights: {given} for {counted(workers, 'worker')}; expected one for each")


def check_label_weights(config: TrainConfig, labels: int) -> None:
    """Raise ConfigError if the number of label weights is not that of the labels."""
    if config.label_weights and len(config.label_weights) != labels:
        raise ConfigError(
            f"label_weights: {counted(len(config.label_weights), 'number')} for {counted(labels, 'label')}; "
            "expected one for each"
        )


def _known_workers(config: TrainConfig) -> int | None:
    if config.device in ("auto", "cuda"):
        return config.workers
    return (config.workers or 1) if config.device == "cpu" else config.device.count(",") + 1


def _numeric_columns(sources: str | Path | Sequence[str | Path]) -> list[str]:
    """Return columns that may become numeric features, whether or not they have a role or are left out."""
    names: list[str] = []
    for name, kind in read_sources(split_sources(sources), ColumnRequirements(others=False)).types.items():
        if is_time(kind):
            names += [part.name for part in time_parts(name, kind)]
        elif is_number(kind) or is_duration(kind):
            names.append(name)
    return names
