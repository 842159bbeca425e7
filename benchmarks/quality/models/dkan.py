"""dkan by the commands that its users run; scoring is by its public function, since it is timed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.quality.data import SPLIT, DataSet
from benchmarks.quality.models import Array, Fitted, Job

START_SECONDS = 3.0
"""CPU seconds of ``dkan train`` before its time is limited: imports and the start of its processes."""


def fit_dkan(job: Job) -> Fitted:
    """Fit with every setting left at its default."""
    return _fit(job)


def fit_fastkan(job: Job) -> Fitted:
    """Fit plain FastKAN."""
    return _fit(job, "--model=fastkan", "--input-norm=layer", "--weight-decay=0.01")


def fit_additive(job: Job) -> Fitted:
    """Fit an additive model with every other setting left at its default."""
    return _fit(job, "--model=additive")


def fit_dkan_twice(job: Job) -> Fitted:
    """Fit with default settings, and then once more on train and valid together."""
    return _fit(job, "--refit")


def fit_additive_twice(job: Job) -> Fitted:
    """Fit an additive model, and then once more on train and valid together."""
    return _fit(job, "--model=additive", "--refit")


def _fit(job: Job, *options: str) -> Fitted:
    prepared, run = job.scratch / "prepared", job.scratch / "run"
    _run(*prepare_words(job.data, prepared, job.seed))
    left = job.budget.left()
    # All processes stay on ``threads`` cores, so that this many wall seconds cannot use more than is left.
    limit = None if left is None else max(1.0, (left - START_SECONDS) / job.threads)
    limited = [] if limit is None else [f"--max-seconds={limit}"]
    _run("train", prepared, f"--out={run}", f"--seed={job.seed}", *options, *limited)
    metrics = json.loads((run / "metrics.json").read_text())
    job.budget.ran_out = limit is not None and metrics["training"]["seconds"] >= limit
    return Fitted(score=partial(_score, job, run / "model"), rounds=[round(metrics["epoch"])])


def prepare_words(data: DataSet, out: Path, seed: int) -> list[str]:
    """Return the words of the command that prepares the rows to fit on."""
    sources = [str(data.path(split)) for split in ("train", "valid")]
    labels = [f"--label={label}" for label in data.labels]
    groups = [] if data.group is None else [f"--group={data.group}"]
    return ["prepare", *sources, f"--out={out}", f"--seed={seed}", f"--split-column={SPLIT}", *labels, *groups]


def read_probabilities(path: Path, labels: Sequence[str]) -> Array:
    """Return the probabilities ``(N, L)`` in a file that ``dkan predict`` wrote."""
    table = pq.read_table(path)
    return np.stack([table[f"{label}_probability"].to_numpy() for label in labels], axis=1)


def _run(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "dkan_core", *map(str, words)], stdin=subprocess.DEVNULL, check=True)


def _score(job: Job, model: Path) -> Array:
    from dkan_core import predict  # not before the fit, whose time counts

    out = job.scratch / "scores.parquet"
    predict(model, job.data.path("test"), out, overwrite=True)
    return read_probabilities(out, job.data.labels)
