"""dkan by its public functions, as the command line has them: prepare, train, predict."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq

from benchmarks.quality.data import SPLIT
from benchmarks.quality.models import Array, Fitted, Job
from benchmarks.timing import cpu_seconds
from dkan_core import PrepareConfig, TrainConfig, predict, prepare, train

PROCESSES = 3
"""A run starts a worker, a server and an evaluator."""
DEFAULTS = TrainConfig()
REFERENCE = TrainConfig(model="fastkan", input_norm="layer", weight_decay=0.01)


def fit_dkan(job: Job) -> Fitted:
    """Fit with every setting left at its default."""
    return _fit(job, DEFAULTS)


def fit_fastkan(job: Job) -> Fitted:
    """Fit plain FastKAN."""
    return _fit(job, REFERENCE)


def fit_additive(job: Job) -> Fitted:
    """Fit an additive model with every other setting left at its default."""
    return _fit(job, TrainConfig(model="additive"))


def fit_dkan_twice(job: Job) -> Fitted:
    """Fit with default settings, and then once more on train and valid together."""
    return _fit(job, TrainConfig(refit=True))


def fit_additive_twice(job: Job) -> Fitted:
    """Fit an additive model, and then once more on train and valid together."""
    return _fit(job, TrainConfig(model="additive", refit=True))


def _fit(job: Job, config: TrainConfig) -> Fitted:
    start_of_a_process = cpu_seconds()  # next to nothing but imports until here
    prepared, run = job.scratch / "prepared", job.scratch / "run"
    sources = [job.data.path("train"), job.data.path("valid")]
    roles = PrepareConfig(label=job.data.labels, split_column=SPLIT, group=job.data.group, seed=job.seed)
    prepare(sources, prepared, roles)
    left = job.budget.left()
    # the clock of max_seconds starts when the processes have; they all stay on ``threads`` cores, so that this many
    # wall seconds cannot use more than is left
    seconds = None if left is None else max(1.0, (left - PROCESSES * start_of_a_process) / job.threads)
    result = train(prepared, run, replace(config, seed=job.seed, max_seconds=seconds))
    job.budget.ran_out = seconds is not None and result.metrics["training"]["seconds"] >= seconds
    return Fitted(score=partial(_score, job, result.model), rounds=[round(result.metrics["epoch"])])


def _score(job: Job, model: str) -> Array:
    out = job.scratch / "scores.parquet"
    predict(model, job.data.path("test"), out, overwrite=True)
    table = pq.read_table(out)
    return np.stack([table[f"{label}_probability"].to_numpy() for label in job.data.labels], axis=1)
