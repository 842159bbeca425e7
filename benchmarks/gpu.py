"""How fast kernels and training are on one GPU: ``python -m benchmarks.gpu --rows 100000000 --features 768``.

Rows are random and in GPU memory, as those of a prepared split are if they fit; a block of a million rows is repeated.
Kernels are measured in interleaved rounds, and the figure is the median. Given folders of prepared data, it trains
their default models on their rows instead: ``python -m benchmarks.gpu PREPARED``.
"""

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
import typer

from dkan_core import TrainConfig
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import RowReader, SliceBatches, open_split
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.kernels import gpu_layers
from dkan_core.model.kernels.choice import Compute, captured
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.roles.own_updates import MAX_STEPS
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve, resolve_for
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.adamw import initial_state
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Arrays, Int64

Result = dict[str, Any]
Model = Literal["auto", "fastkan"]
Precision = Literal["fp32", "bf16"]
CUDA = torch.device("cuda", 0)
KERNEL_SHAPES = ((65_536, 768, 64), (65_536, 768, 256), (4_096, 768, 64), (4_096, 32, 256))
"""Rows, inputs and outputs."""
TURNS = 9
BLOCK_ROWS = 1_000_000


class RepeatedRows:
    """Random rows, the same block of them again and again: as many as wanted in little memory."""

    def __init__(self, rows: int, features: int) -> None:
        rng = np.random.default_rng(0)
        self.rows = rows
        self.starts: Int64 = np.append(np.arange(0, rows, BLOCK_ROWS), rows)
        numeric = np.frombuffer(rng.bytes(BLOCK_ROWS * features), np.uint8).reshape(BLOCK_ROWS, features)
        self.block: Arrays = {"numeric": numeric, "labels": (numeric[:, :1] > 200).astype(np.uint8)}
        self.row_bytes = features + 1

    def empty(self, rows: int) -> Arrays:
        """Return arrays for so many rows."""
        return {name: np.empty((rows, array.shape[1]), np.uint8) for name, array in self.block.items()}

    def gather(self, extents: Int64 | Sequence[tuple[int, int]], out: Arrays | None = None) -> Arrays:
        """Return the rows of ``extents`` (first, past the last), none of which crosses a block."""
        cuts = [slice(start % BLOCK_ROWS, start % BLOCK_ROWS + stop - start) for start, stop in extents]
        arrays = out or self.empty(sum(cut.stop - cut.start for cut in cuts))
        for name, array in self.block.items():
            np.concatenate([array[cut] for cut in cuts], out=arrays[name])
        return arrays

    def keep_in_memory(self) -> None:
        """Do nothing: the block is there."""

    def close(self) -> None:
        """Do nothing."""


def main(
    prepared: Annotated[list[Path] | None, typer.Argument(help="Prepared data; default: random rows.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Rows per step on prepared data.")] = None,
    rows: Annotated[int, typer.Option(help="Rows to train on.")] = 10_000_000,
    features: Annotated[int, typer.Option(help="Columns of each row.")] = 768,
    steps: Annotated[int, typer.Option(help="Maximum number of steps to measure; an epoch if it has fewer.")] = 2_000,
    model: Annotated[Model | None, typer.Option(help="Model to train; default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Measure and print Markdown tables."""
    torch.cuda.set_device(CUDA)
    machine = {"gpu": torch.cuda.get_device_name(CUDA), "torch": torch.__version__}
    typer.echo(f"{machine['gpu']}, torch {machine['torch']}\n")
    if prepared:
        cases = itertools.product(prepared, batch_size or (None, 16_384), get_args(Precision))
        found = [measure_prepared(*case, steps) for case in cases]
        typer.echo(markdown(found))
        write(out, {**machine, "prepared": found})
        return
    kernels = [measure_kernels(*shape, half=half) for shape in KERNEL_SHAPES for half in (False, True)]
    typer.echo(markdown(kernels))
    reader = RepeatedRows(rows, features)
    training = []
    for each, precision in itertools.product([model] if model else get_args(Model), get_args(Precision)):
        training.append(measure_training(reader, features, each, precision, steps))
        typer.echo(markdown(training[-1:]))
    write(out, {**machine, "kernels": kernels, "training": training})


def write(out: Path | None, figures: Result) -> None:
    """Write figures as JSON."""
    if out is not None:
        out.write_text(json.dumps(figures, indent=2) + "\n")


def measure_kernels(rows: int, inputs: int, outputs: int, *, half: bool) -> Result:
    """Compare ways to compute a first layer of stored bytes, forward and backward, each in a CUDA graph of its own."""
    stored_BI = torch.randint(0, 256, (rows, inputs), dtype=torch.uint8, device=CUDA)
    sizes = ((outputs, inputs * 8), (outputs, inputs), (outputs,))
    weights = [torch.randn(size, device=CUDA, requires_grad=True) for size in sizes]
    grid_G = torch.linspace(-2, 2, 8, device=CUDA)
    grad_BO = torch.randn(rows, outputs, device=CUDA)

    def passes(compute: Compute) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                out_BO = compute(stored_BI, *weights, grid_G, 4 / 7)
            torch.autograd.grad(out_BO, weights, grad_BO.to(out_BO.dtype))

        return captured(run, CUDA)

    layer = gpu_layers.BYTE_LAYER
    computes: dict[str, Compute] = {"formula": layer.formula, "parts": layer.candidates["parts"]}
    computes["fused"] = layer.candidates["fused"]
    milliseconds = in_turns({name: passes(compute) for name, compute in computes.items()})
    shown = {f"{name}, ms": round(value, 3) for name, value in milliseconds.items()}
    return {
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "precision": "bf16" if half else "fp32",
        **shown,
        "fused, rows/s": round(rows / milliseconds["fused"] * 1e3),
    }


def in_turns(functions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median milliseconds of functions that run alternately, after two turns that are not counted."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(TURNS + 2):
        for name, function in functions.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            function()
            end.record()
            torch.cuda.synchronize()
            if turn > 1:
                found[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in found.items()}


def measure_training(
    reader: RepeatedRows,
    features: int,
    model: Model,
    precision: Precision,
    steps: int,
) -> Result:
    """Take steps on random rows."""
    config = resolve(TrainConfig(device="cuda", workers=1, model=model, precision=precision), reader.rows)
    steps = min(steps, -(-reader.rows // config.batch_size))
    network = TabularFastKAN(architecture(config, features))
    return {
        "model": f"{model}, {config.members} x {config.hidden}",
        **measure_steps(reader, network, config, steps),
    }


def measure_prepared(folder: Path, batch_size: int | None, precision: Precision, steps: int) -> Result:
    """Take steps on prepared rows with their default model."""
    manifest = read_manifest(folder)
    with open_split(folder, manifest, "train") as reader:
        asked = TrainConfig(device="cuda", workers=1, precision=precision, batch_size=batch_size)
        config = resolve_for(asked, manifest)
        model = untrained_model(choose_architecture(reader, manifest, config), manifest, config)
        return {"data set": folder.name, **measure_steps(reader, model, config, steps)}


def measure_steps(reader: RowReader, model: TabularModel, config: ResolvedTrainConfig, steps: int) -> Result:
    """Take steps as a run with strategy "single" does, from the second epoch on, after some that are not counted."""
    rules = UpdateRules.from_config(config, reader.rows, parameter_groups(model, config, reader.rows))
    state_3P = initial_state(flatten(model).numpy())
    started = time.perf_counter()
    taker = DeviceSteps(Replica(model, CUDA), SliceBatches(reader, config, 0), rules)
    torch.cuda.synchronize()
    upload = time.perf_counter() - started
    per_epoch = rules.work_plan.steps_per_epoch
    taker.take(state_3P, range(min(per_epoch, MAX_STEPS)), 0, 1.0)
    taken = done = 0
    started = time.perf_counter()
    while taken < steps:
        first = per_epoch + taken
        stop = min(first + min(MAX_STEPS, steps - taken), (first // per_epoch + 1) * per_epoch)
        done += taker.take(state_3P, range(first, stop), 0, 1.0).rows
        taken += stop - first
    seconds = time.perf_counter() - started
    del taker
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "parameters": state_3P.shape[1],
        "precision": config.precision,
        "batch": config.batch_size,
        "rows": reader.rows,
        "copied to the GPU in, s": round(upload, 1),
        "steps": taken,
        "ms a step": round(1e3 * seconds / taken, 3),
        "rows/s": round(done / seconds),
        "an epoch, s": round(reader.rows / done * seconds, 2),
    }


def architecture(config: ResolvedTrainConfig, features: int) -> ModelConfig:
    """Return that of a model for numeric columns alone."""
    shared = {name: getattr(config, name) for name in ModelConfig.model_fields if hasattr(config, name)}
    empty: dict[str, Any] = {"binary": (), "cardinalities": (), "embedded": (), "one_hot_groups": (), "missing": ()}
    return ModelConfig(labels=("label",), num_numeric=features, **{**shared, **empty})


def markdown(results: Sequence[Result]) -> str:
    """Return a table of results with the same columns."""
    rows = [[f"{value:,}" if isinstance(value, int) else str(value) for value in each.values()] for each in results]
    lines = [[*results[0]], ["---:"] * len(results[0]), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
