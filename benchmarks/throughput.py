"""How fast preparation, loading, kernels and training are on this machine: ``python -m benchmarks.throughput``.

Two things that are compared run alternately within one process, and only their ratio is meaningful, because absolute
times drift on a shared machine. Without a source the rows are synthetic.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer

from benchmarks.timing import cpu_seconds, in_turns
from dkan_core import FastKAN, PrepareConfig, TrainConfig, prepare, train
from dkan_core.config.train import Kernel
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split, train_batches
from dkan_core.model.kernels import use_kernel
from dkan_core.utils.messages import counted

TURNS = 7

Result = dict[str, Any]


def main(
    source: Annotated[str, typer.Argument(help="Parquet to measure on; synthetic rows without it.")] = "",
    label: Annotated[str, typer.Option(help="Label column of the source.")] = "label",
    rows: Annotated[int, typer.Option(help="Synthetic rows.")] = 200_000,
    features: Annotated[int, typer.Option(help="Synthetic features.")] = 128,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Measure and print a Markdown table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if not source:
            source, label = str(_synthetic(folder / "rows.parquet", rows, features)), "label"
        results = [measure_prepare(source, label, folder), measure_loader(folder), *measure_kernels()]
        results += measure_training(folder)
    typer.echo(_markdown(results))
    if out is not None:
        out.write_text(json.dumps({"machine": _machine(), "results": results}, indent=2) + "\n")


def _synthetic(path: Path, rows: int, features: int) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + rng.normal(size=rows) > 2.5).astype(np.int8)
    columns = {f"f{index:04d}": x[:, index] for index in range(features)}
    pq.write_table(pa.table({**columns, "label": y}), path)
    return path


def measure_prepare(source: str, label: str, folder: Path) -> Result:
    """Prepare the source once."""
    before, started = cpu_seconds(), time.perf_counter()
    prepared = prepare(source, folder / "prepared", PrepareConfig(label=(label,)))
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - before
    rows = sum(split.rows for split in prepared.splits.values())
    columns = len(prepared.preprocessor.numeric) + len(prepared.preprocessor.coded)
    return {
        "what": f"prepare, {rows:,} rows x {columns} columns",
        "figure": f"{rows / seconds:,.0f} rows/s",
        "detail": f"{rows * columns / cpu / 1e6:.1f} million values per CPU second",
    }


def measure_loader(folder: Path) -> Result:
    """Gather an epoch's batches against copying the same bytes."""
    root = folder / "prepared"
    reader = open_split(root, read_manifest(root), "train")
    size = reader.rows * reader.row_bytes
    block = np.ones(size, dtype=np.uint8)
    target = np.empty_like(block)

    def gather() -> None:
        for _ in train_batches(reader, seed=0, epoch=0, batch_size=8192):
            pass

    gathered, copied = in_turns(
        {"gather": gather, "copy": lambda: np.copyto(target, block)}, TURNS, time.perf_counter
    ).values()
    return {
        "what": f"gather shuffled batches of 8,192, {reader.row_bytes} bytes per row",
        "figure": f"{size / gathered / 1e9:.2f} GB/s, {reader.rows / gathered / 1e6:.1f} million rows/s",
        "detail": f"{copied / gathered:.2f} times the speed of memcpy",
    }


def measure_kernels() -> list[Result]:
    """Compare each backend's forward and backward pass with the formula written out."""
    results = []
    for inputs in (32, 768):
        model = FastKAN([inputs, 64, 1])
        x = torch.randn(4096, inputs)

        def passes(kernel: Kernel, model: FastKAN = model, x: torch.Tensor = x) -> Callable[[], None]:
            def run() -> None:
                use_kernel(model, kernel)
                model(x).sum().backward()

            return run

        seconds = in_turns({kernel: passes(kernel) for kernel in ("auto", "eager")}, TURNS, time.perf_counter)
        results.append(
            {
                "what": f"forward and backward, FastKAN [{inputs}, 64, 1], 4,096 rows, float32",
                "figure": f"{4096 / seconds['auto']:,.0f} rows/s",
                "detail": f"{seconds['eager'] / seconds['auto']:.2f} times the plain torch formula",
            }
        )
    return results


def measure_training(folder: Path) -> list[Result]:
    """Train two epochs with one worker and with two; the second epoch counts."""
    speeds: dict[int, float] = {}
    config = TrainConfig(epochs=2, batch_size=4096)
    for workers in (1, 2):
        run = train(folder / "prepared", folder / f"run-{workers}", replace(config, workers=workers))
        speeds[workers] = run.history[-1]["rows_per_second"]
    return [
        {
            "what": f"train, {counted(workers, 'worker')}, batches of 4,096, evaluation in parallel",
            "figure": f"{speed:,.0f} rows/s",
            "detail": f"{speed / speeds[1]:.2f} times the speed of one worker",
        }
        for workers, speed in speeds.items()
    ]


def _machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, {device}, torch {torch.__version__}"


def _markdown(results: list[Result]) -> str:
    lines = [f"Measured on {_machine()}.", "", "| what | throughput | in comparison |", "|---|---:|---:|"]
    lines += [f"| {result['what']} | {result['figure']} | {result['detail']} |" for result in results]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
