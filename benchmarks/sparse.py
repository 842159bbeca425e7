"""What many ids cost: memory and time of preparing and training on rows that have a few of 100,000 ids each.

    python -m benchmarks.sparse [--rows 200000] [--ids 100000] [--ones 50] [--hidden 64] [--out build/sparse.json]

Ids follow Zipf's law; the label depends on some of them. The bytes of the shards and the peak memory of each command
are compared with one byte or one float32 for every id in every row. Then the cost of a step on one thread: the ids'
weights in the forward and the backward pass of a batch, by kernel, and the optimizer, which updates all of them.
"""

import argparse
import functools
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dkan_core.config.train import Kernel
from dkan_core.data.format.manifest import read_manifest
from dkan_core.model.kernels import use_kernel
from dkan_core.model.kernels.native_input import gradients_in_place
from dkan_core.model.sparse_weights import SparseWeights
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups, initial_state
from dkan_core.utils.torch_resources import torch_threads

# Rows that are drawn at once.
BLOCK = 20_000
BATCH, REPEATS = 512, 21
KERNELS: tuple[Kernel, ...] = ("native", "recompute")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows of all splits")
    parser.add_argument("--ids", type=int, default=100_000, help="distinct ids")
    parser.add_argument("--ones", type=int, default=50, help="ids per row")
    parser.add_argument("--hidden", default="64", help="hidden units of the model, which has one member")
    parser.add_argument("--out", type=Path, default=Path("build/sparse.json"), help="file of the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dkan-") as scratch:
        found = measure(Path(scratch), options.rows, options.ids, options.ones, options.hidden)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))  # noqa: T201 - it is what the command is for


def measure(folder: Path, rows: int, ids: int, ones: int, hidden: str) -> dict[str, Any]:
    """Return bytes and seconds of each step."""
    write_rows(folder / "rows.parquet", rows, ids, ones)
    data, run = folder / "data", folder / "run"
    prepared = timed("prepare", str(folder / "rows.parquet"), "--out", str(data), "--label", "y")
    manifest = read_manifest(data)
    settings = ("--members", "1", "--hidden", hidden, "--epochs", "2", "--workers", "1", "--device", "cpu")
    trained = timed("train", str(data), "--out", str(run), *settings)
    metrics = json.loads((run / "metrics.json").read_text())
    return {
        "rows": rows,
        "ids": len(manifest.preprocessor.sparse[0].ids),
        "shards_bytes": sum(split.bytes for split in manifest.splits.values()),
        "dense_bytes": rows * ids,
        "dense_float32_bytes": 4 * rows * ids,
        "prepare": prepared,
        "train": trained,
        "average_precision": metrics["average_precision"],
        "step_milliseconds": step_milliseconds(ids, ones, int(hidden)),
    }


def step_milliseconds(ids: int, ones: int, hidden: int) -> dict[str, float]:
    """Return the median of what the parts of a step take that follow the ids, for a batch of 512 rows."""
    codes_BS = torch.from_numpy(drawn_ids(np.random.default_rng(0), BATCH, ids, ones) + 1)
    upstream_BH = torch.ones(BATCH, hidden)
    found: dict[str, float] = {}
    with torch_threads(1):
        for kernel in KERNELS:
            weights = SparseWeights(1 + ids, hidden)
            use_kernel(weights, kernel)
            weights.weight.grad = torch.zeros_like(weights.weight)
            found[kernel] = median_milliseconds(functools.partial(both_passes, weights, codes_BS, upstream_BH))
        state_3P = initial_state(np.zeros((1 + ids) * hidden, np.float32))
        optimizer, gradient_P = FlatAdamW(ParameterGroups()), np.zeros_like(state_3P[0])
        step = functools.partial(optimizer.step, state_3P, state_3P, gradient_P, lr=1e-3, count=1)
        found["optimizer"] = median_milliseconds(step)
    return found


def both_passes(weights: SparseWeights, codes_BS: torch.Tensor, upstream_BH: torch.Tensor) -> None:
    """Compute a batch's sums, and add the gradient of the weights where it is kept, as a training step does."""
    out_BH = weights(codes_BS)
    with gradients_in_place():
        out_BH.backward(upstream_BH)


def median_milliseconds(run: Callable[[], object]) -> float:
    """Return how long a function takes, the median of some calls."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds)


def write_rows(path: Path, rows: int, ids: int, ones: int) -> None:
    """Write rows with a list of ids each, and a label that depends on every tenth id."""
    rng = np.random.default_rng(0)
    effect_V = np.where(np.arange(ids) % 10 == 0, rng.normal(size=ids), 0.0)
    schema = pa.schema([("ids", pa.list_(pa.int32())), ("y", pa.int8())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            drawn_NK = drawn_ids(rng, count, ids, ones)
            log_odds_N = effect_V[drawn_NK].sum(axis=1)
            y_N = (log_odds_N + rng.logistic(size=count) > 0).astype(np.int8)
            offsets = np.arange(count + 1, dtype=np.int32) * ones
            lists = pa.ListArray.from_arrays(offsets, drawn_NK.ravel())
            writer.write_table(pa.table([lists, pa.array(y_N)], schema=schema))


def drawn_ids(rng: np.random.Generator, rows: int, ids: int, ones: int) -> npt.NDArray[np.int32]:
    """Return ids ``(rows, ones)`` by Zipf's law with exponent 1: the logarithm of an id is evenly spread."""
    drawn_NK: npt.NDArray[np.int32] = np.exp(rng.random((rows, ones)) * np.log(ids)).astype(np.int32) - 1
    return drawn_NK


def timed(*arguments: str) -> dict[str, float]:
    """Run a command of dkan; return its seconds, and the peak memory of its largest process in bytes."""
    begin = time.perf_counter()
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    command = [sys.executable, "-c", code, sys.executable, "-m", "dkan_core", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    # Linux counts in kilobytes.
    return {"seconds": time.perf_counter() - begin, "peak_bytes": 1024.0 * int(done.stdout.split()[-1])}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
