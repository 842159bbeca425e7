"""What sketched first layers save and cost, compared with the full one: ``python -m benchmarks.sketched``.

Steps (gradient and AdamW) are interleaved within one process, exchanges in the processes of ``dkan bench sync``. Only
their ratios are meaningful, because absolute times drift on a shared machine. Rows are synthetic, with two kinds of
labels:

- "factors": columns are mixtures of 16 factors with noise, and the label depends on the factors;
- "columns": columns are independent, and the label depends on curves of 48 of them.
"""

import argparse
import itertools
import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.timing import in_turns
from dkan_core import PrepareConfig, TrainConfig, evaluate, prepare, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split, run_batches
from dkan_core.training.compute.flat_model import Replica, flatten, parameter_count
from dkan_core.training.planning.bench import bench_sync
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups, initial_state

KINDS = ("factors", "columns")
FACTORS, USED_COLUMNS = 16, 48
FLOAT_BYTES = 4

Row = dict[str, Any]
Rows = npt.NDArray[np.float32]

logger = logging.getLogger("benchmarks.sketched")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", type=int, nargs="+", default=[768, 4096], help="columns of the tables")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64], help="ranks of the sketches")
    parser.add_argument("--rows", type=int, default=12_000, help="rows of each table")
    parser.add_argument("--hidden", type=int, default=128, help="hidden units")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the rows")
    parser.add_argument("--turns", type=int, default=10, help="steps that are timed")
    parser.add_argument("--out", type=Path, default=Path("build/sketched.json"), help="file of the figures")
    options = parser.parse_args()
    config = TrainConfig(
        device="cpu", workers=1, members=1, hidden=(options.hidden,), epochs=options.epochs, batch_size=256
    )
    ranks = [0, *options.ranks]
    with tempfile.TemporaryDirectory(prefix="dkan-") as scratch:
        found = [
            row
            for columns in options.columns
            for row in measure(columns, ranks, options.rows, config, options.turns, Path(scratch) / str(columns))
        ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))  # noqa: T201 - it is what the command is for


def measure(columns: int, ranks: list[int], rows: int, config: TrainConfig, turns: int, folder: Path) -> list[Row]:
    """Return a row of the table for each rank, 0 being the full layer."""
    folder.mkdir()
    settings = {rank: replace(config, sketch_rank=rank) for rank in ranks}
    precision: dict[tuple[int, str], float] = {}
    for kind in KINDS:
        write_rows(folder / f"{kind}.parquet", kind, columns, rows)
        prepare(folder / f"{kind}.parquet", folder / kind, PrepareConfig(label=("label",)))
        for rank in ranks:
            run = folder / f"run-{kind}-{rank}"
            model = train(folder / kind, run, settings[rank]).model
            scored = evaluate(model, folder / kind, folder / "eval", explain=False, overwrite=True)
            precision[rank, kind] = float(scored.metrics["average_precision"])
            logger.info("%d columns, %s, rank %d: AP %.4f", columns, kind, rank, precision[rank, kind])
    steps = {rank: make_step(folder / KINDS[0], settings[rank]) for rank in ranks}
    step = in_turns({rank: run for rank, (run, _) in steps.items()}, turns, time.perf_counter)
    sizes = {rank: FLOAT_BYTES * count for rank, (_, count) in steps.items()}
    costs = bench_sync([str(size) for size in sizes.values()], device="cpu").costs
    exchange = {(cost.exchange, cost.size): cost.seconds for cost in costs}
    return [
        {
            "columns": columns,
            "rank": rank,
            "parameters": sizes[rank] // FLOAT_BYTES,
            "step": step[rank] / step[0],
            "milliseconds": 1e3 * step[rank],
            "exchange": {
                name: exchange[name, sizes[rank]] / exchange[name, sizes[0]]
                for name in ("parameter-server sync", "allreduce")
            },
            "average_precision": {kind: precision[rank, kind] for kind in KINDS},
        }
        for rank in ranks
    ]


def write_rows(path: Path, kind: str, columns: int, rows: int) -> None:
    """Write rows with a label of one of the kinds; a quarter of them are positive."""
    rng = np.random.default_rng(0)
    factors_NZ: Rows = rng.normal(size=(rows, FACTORS)).astype(np.float32)
    values: Rows = rng.normal(size=(rows, columns)).astype(np.float32)
    if kind == "factors":
        values += factors_NZ @ rng.normal(size=(FACTORS, columns)).astype(np.float32) / 2
        log_odds = np.sin(2 * factors_NZ).sum(1) + 2 * (factors_NZ[:, ::2] * factors_NZ[:, 1::2]).sum(1)
    else:
        used = values[:, rng.permutation(columns)[:USED_COLUMNS]]
        log_odds = (np.sin(3 * used[:, ::3]) + used[:, 1::3] ** 2 - np.abs(used[:, 2::3])).sum(1)
    labels = log_odds + rng.logistic(size=rows) > np.quantile(log_odds, 0.75)
    names = {f"x{index:04d}": values[:, index] for index in range(columns)}
    pq.write_table(pa.table({**names, "label": labels.astype(np.int8)}), path)


def make_step(data: Path, config: TrainConfig) -> tuple[Callable[[], None], int]:
    """Return a training step as a single worker takes it, and the number of parameters."""
    manifest = read_manifest(data)
    resolved = resolve_for(config, manifest)
    with open_split(data, manifest, "train") as reader:
        model = untrained_model(choose_architecture(reader, manifest, resolved), manifest, resolved).train()
        (arrays,) = [
            {name: array.copy() for name, array in each.items()} for each in islice(run_batches(reader, resolved), 1)
        ]
    state_3P = initial_state(flatten(model).numpy())
    replica, optimizer = Replica(model, torch.device("cpu")), FlatAdamW(ParameterGroups())
    replica.load(state_3P[0])
    gradients_P, counts = replica.gradients_P.numpy(), itertools.count(1)

    def step() -> None:
        replica.compute_gradient(arrays, resolved)
        optimizer.step(state_3P, state_3P, gradients_P, lr=1e-4, count=next(counts))

    return step, parameter_count(model)


def markdown(rows: list[Row]) -> str:
    """Return the table."""
    lines = [
        "| columns | first layer | parameters | exchange | step | server | allreduce | AP, factors | AP, columns |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        layer = f"rank {row['rank']}" if row["rank"] else "full"
        exchanges = " | ".join(f"{ratio:.2f}" for ratio in row["exchange"].values())
        precision = " | ".join(f"{row['average_precision'][kind]:.3f}" for kind in KINDS)
        lines.append(
            f"| {row['columns']:,} | {layer} | {row['parameters']:,} | {FLOAT_BYTES * row['parameters'] / 1e6:.2f} MB "
            f"| {row['step']:.2f} | {exchanges} | {precision} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
