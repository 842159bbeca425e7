"""Whether the way in which workers are synchronized changes the model: validation AP after the same number of rows.

Every run trains for the same epochs on the same rows with the same settings; seeds differ. The AP is that of the last
parameters, not of the best ones.
"""

import logging
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.data import DataSet
from dkan_core import TrainConfig, train

REFERENCE = "single"
WAYS: dict[str, dict[str, Any]] = {
    REFERENCE: {"strategy": "single", "workers": 1},
    **{
        f"parameter-server, {mode}, {workers} workers": {
            "strategy": "parameter-server",
            "mode": mode,
            "workers": workers,
        }
        for mode in ("sync", "average", "async")
        for workers in (2, 4)
    },
    **{
        f"{strategy}, 2 workers": {"strategy": strategy, "workers": 2}
        for strategy in ("allreduce", "ddp", "ring", "local-sgd")
    },
}

logger = logging.getLogger("benchmarks.training.quality")


def measure(
    data: DataSet, scratch: Path, *, epochs: int = 3, seeds: int = 3, batch_size: int | None = None
) -> list[dict[str, Any]]:
    """Train in every way with every seed.

    Args:
        data: To train on.
        scratch: For the runs.
        epochs: Of each run.
        seeds: How many.
        batch_size: Rows of a step; None for the default.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for seed in range(seeds):
        for name, settings in WAYS.items():
            config = TrainConfig(device="cpu", epochs=epochs, patience=epochs, batch_size=batch_size, seed=seed)
            run = scratch / f"{re.sub('[, ]+', '-', name)}-{seed}"
            found[name].append(train(data.folder, run, replace(config, **settings)).history[-1])
            logger.info("%s, seed %d: AP %.4f", name, seed, found[name][-1]["average_precision"])
    values = {name: [entry["average_precision"] for entry in entries] for name, entries in found.items()}
    return [_row(data, name, values[name], values[REFERENCE], found[name]) for name in WAYS]


def _row(
    data: DataSet, way: str, values: list[float], reference: list[float], entries: list[dict[str, Any]]
) -> dict[str, Any]:
    differences = [value - base for value, base in zip(values, reference, strict=True)]
    return {
        "data": data.name,
        "way": way,
        "average_precision": statistics.mean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else math.nan,
        "difference": statistics.mean(differences),
        "difference_spread": statistics.stdev(differences) if len(values) > 1 else math.nan,
        "epochs": entries[-1]["epoch"],
        "seeds": values,
        "seconds": statistics.median(entry["seconds"] for entry in entries),
    }
