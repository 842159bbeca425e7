"""Interleaved runs of every way to train, with every number of workers, on data of several sizes."""

import logging
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.data.generated import write_rows
from benchmarks.strategies import data_parallel
from benchmarks.strategies.ways import DATA_PARALLEL, REFERENCE, WAYS, Way, exchanged_bytes
from dkan_core import PrepareConfig, prepare, train
from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.training.compute.flat_model import parameter_count
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.untrained_model import untrained_model

logger = logging.getLogger("benchmarks.strategies")

Row = dict[str, Any]
Cell = tuple[str, int]
"""A way by its name, and how many workers."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all runs have in common."""

    workers: Sequence[int]
    rounds: int
    epochs: int
    """At least two: the first, in which memory is touched and kernels are chosen, is not counted."""

    settings: dict[str, Any]
    """Of the model and its steps."""


@dataclass(frozen=True)
class Turn:
    """What one run showed."""

    epoch_seconds: float
    average_precision: float


def measure(rows: int, features: int, options: Options, scratch: Path) -> list[Row]:
    """Return a row for each way and number of workers, on generated data of a size.

    Args:
        rows: Of the Parquet file.
        features: float32 columns of it.
        options: What all runs have in common.
        scratch: Folder for data and runs.
    """
    prepared = scratch / f"prepared-{rows}"
    prepare(write_rows(scratch / f"{rows}.parquet", rows, features), prepared, PrepareConfig(label=("label",)))
    manifest = read_manifest(prepared)
    turns: dict[Cell, list[Turn]] = {}
    for turn in range(options.rounds):
        for way, workers in cells(options.workers):
            run = scratch / f"{rows}-{way.name.replace(' ', '-')}-{workers}-{turn}"
            turns.setdefault((way.name, workers), []).append(_train(way, workers, prepared, run, options))
        for workers in filter(data_parallel.is_possible, options.workers):
            config = resolve(_way(REFERENCE).config(1, epochs=options.epochs, **options.settings), _rows(manifest))
            seconds, precision = data_parallel.train(prepared, config, devices=range(workers))
            turns.setdefault((DATA_PARALLEL, workers), []).append(Turn(seconds, precision))
        logger.info("%s rows: turn %d of %d", f"{rows:,}", turn + 1, options.rounds)
    return _table(turns, rows, prepared, options)


def cells(workers: Sequence[int]) -> Iterator[tuple[Way, int]]:
    """Yield every way with every number of workers that it takes."""
    for way in WAYS:
        for count in sorted({1, *workers}):
            if way.takes(count):
                yield way, count


def _train(way: Way, workers: int, prepared: Path, run: Path, options: Options) -> Turn:
    epochs = options.epochs
    config = way.config(workers, epochs=epochs, patience=epochs, evaluations_per_epoch=1, **options.settings)
    history = train(prepared, run, config).history
    seconds = (history[-1]["seconds"] - history[0]["seconds"]) / (history[-1]["epoch"] - history[0]["epoch"])
    return Turn(seconds, history[-1]["average_precision"])


def _table(turns: dict[Cell, list[Turn]], rows: int, prepared: Path, options: Options) -> list[Row]:
    manifest = read_manifest(prepared)
    parameters = _parameters(prepared, manifest, options)
    base = turns[REFERENCE, 1]
    table = []
    for (name, workers), found in turns.items():
        speedup = statistics.median(
            one.epoch_seconds / each.epoch_seconds for one, each in zip(base, found, strict=True)
        )
        row = {
            "rows": rows,
            "strategy": name,
            "workers": workers,
            "epoch_seconds": statistics.median(each.epoch_seconds for each in found),
            "speedup": speedup,
            "efficiency": speedup / workers,
            "average_precision": statistics.mean(each.average_precision for each in found),
            "turns": [vars(each) for each in found],
        }
        if name != DATA_PARALLEL:
            config = resolve(_way(name).config(workers, **options.settings), _rows(manifest))
            steps = steps_per_epoch(_rows(manifest), config.batch_size)
            row["exchange_mb"] = exchanged_bytes(config, parameters, steps) / 1e6
        table.append(row)
    return table


def _parameters(prepared: Path, manifest: PreparedData, options: Options) -> int:
    config = resolve(_way(REFERENCE).config(1, **options.settings), _rows(manifest))
    with open_split(prepared, manifest, "train") as reader, torch.random.fork_rng(devices=[]):
        return parameter_count(untrained_model(choose_architecture(reader, manifest, config), manifest, config))


def _way(name: str) -> Way:
    return next(way for way in WAYS if way.name == name)


def _rows(manifest: PreparedData) -> int:
    return int(manifest.splits["train"].rows)
