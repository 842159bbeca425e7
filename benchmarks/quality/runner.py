"""Runs one fit as a subprocess, and keeps its result in ``results.json``."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np

import dkan_core
from benchmarks.quality import scores
from benchmarks.quality.data import ROOT, DataSet
from benchmarks.quality.fit import DONE, FITTED, PROBABILITIES
from benchmarks.quality.models import MODELS, Array
from benchmarks.quality.processes import run_limited
from dkan_core.utils.storage.files import write_json

OK, FAILED, OVER_BUDGET, NOT_INSTALLED = "ok", "failed", "over budget", "not installed"
GRACE, GRACE_SECONDS = 1.25, 60.0
"""A fit is killed at this much of its budget and as many seconds more: models that can stop themselves do so before."""

Cell = dict[str, Any]
"""One fit in ``results.json``: set, model, seed, status, and where it went well costs and metrics."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is the same for every fit."""

    threads: int
    max_cpu_seconds: float | None


class Results:
    """The cells of ``out/results.json``, written after each fit; their probabilities lie in ``out/predictions``."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out / "results.json"
        (out / "predictions").mkdir(parents=True, exist_ok=True)
        (out / "logs").mkdir(exist_ok=True)
        self.content: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {"cells": {}}

    def find(self, key: str) -> Cell | None:
        """Return the cell of an earlier run, unless it failed or its probabilities are gone."""
        cell: Cell | None = self.content["cells"].get(key)
        if cell is None or cell["status"] not in (OK, OVER_BUDGET):
            return None
        return cell if cell["status"] == OVER_BUDGET or self._predictions(key).exists() else None

    def add(self, key: str, cell: Cell) -> None:
        """Keep a cell."""
        self.content["cells"][key] = cell
        self.write()

    def write(self) -> None:
        """Write the file, atomically."""
        write_json(self.path, self.content)

    def _predictions(self, key: str) -> Path:
        return self.out / "predictions" / f"{key}.npy"

    def keep_predictions(self, key: str, written: Path) -> None:
        """Move a fit's probabilities here."""
        shutil.move(written, self._predictions(key))

    def predictions(self, key: str) -> Array:
        """Return the probabilities of a cell, ``(N, L)``."""
        return np.asarray(np.load(self._predictions(key)))


def cell_key(data: DataSet, model: str, seed: int, settings: Settings) -> str:
    """Return a name that changes with whatever a fit depends on: data, model, seed, versions, threads and budget."""
    parts = [data.digest, model, seed, versions(model), asdict(settings)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def versions(model: str) -> dict[str, str | None]:
    """Return the versions of what a model runs on; None for a module that is not installed.

    dkan's own and that of the benchmark's file on the model are hashes: they change more often than a version does.
    """
    entry = MODELS[model]
    found = {name: _version(name) for name in entry.needs}
    return {**found, "benchmark": _source_hash(Path(__file__).parent / "models" / f"{entry.module}.py")}


@cache
def _version(module: str) -> str | None:
    if module == "dkan_core":
        return f"{dkan_core.__version__}+{_source_hash(Path(dkan_core.__file__).parent)}"
    if importlib.util.find_spec(module) is None:
        return None
    return version(packages_distributions()[module][0])


@cache
def _source_hash(path: Path) -> str:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def run_fit(data: DataSet, model: str, seed: int, settings: Settings, results: Results) -> Cell:
    """Fit and score one model in a subprocess; whatever goes wrong in it is the cell's status."""
    cell: Cell = {"set": data.name, "model": model, "seed": seed, "versions": versions(model)}
    missing = [name for name, found in cell["versions"].items() if found is None]
    if missing:
        return {**cell, "status": NOT_INSTALLED, "reason": f"{', '.join(missing)} not installed"}
    log = results.out / "logs" / f"{data.name}-{model}-{seed}.log"
    key = cell_key(data, model, seed, settings)
    with tempfile.TemporaryDirectory(prefix="fit-", dir=results.out) as scratch:
        folder = Path(scratch)
        job = {"data": asdict(data), "model": model, "seed": seed, "threads": settings.threads}
        write_json(folder / "job.json", {**job, "cpu_seconds": settings.max_cpu_seconds})
        limit = settings.max_cpu_seconds
        code, killed = run_limited(
            [sys.executable, "-m", "benchmarks.quality.fit", str(folder / "job.json")],
            environment=environment(settings.threads),
            log=log,
            cpu_seconds=None if limit is None else GRACE * limit + GRACE_SECONDS,
            until=folder / FITTED,
        )
        if killed:
            return {**cell, "status": OVER_BUDGET, "reason": f"killed: more than {limit:g} CPU seconds"}
        if code:
            return {**cell, "status": FAILED, "reason": f"exit code {code}: {_last_line(log)}"}
        facts = json.loads((folder / DONE).read_text())
        results.keep_predictions(key, folder / PROBABILITIES)
    labels_NL = data.labels_NL(data.read("test"))
    return {**cell, "status": OK, **facts, "metrics": scores.score(labels_NL, results.predictions(key), data.labels)}


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a fit: every library with the same threads and no GPU, and each module compiled once.

    Without cached bytecode, imports take several CPU seconds of every fit, which no installed package does.
    """
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **pools, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
