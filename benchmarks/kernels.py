"""What a step of a default model costs with each kernel on a CPU: ``python -m benchmarks.kernels FILE.parquet ...``.

CPU time of the forward and backward pass of one batch on one thread, and of an AdamW step. Kernels alternate, and only
their ratios are meaningful, because absolute times drift on a shared machine. Without files the rows are synthetic.
"""

import argparse
import copy
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.timing import in_turns
from dkan_core import PrepareConfig, TrainConfig, prepare
from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.config.train import Kernel
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split, run_batches
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.kernels import describe_kernel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica, flatten, parameter_count
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state import adamw
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups, initial_state
from dkan_core.utils.arrays import Arrays

KERNELS: tuple[Kernel, ...] = ("eager", "recompute", "auto")
BF16 = "auto, bf16"
BATCHES = 8
SYNTHETIC_ROWS = 40_000
WIDE_ROWS = 4096

Result = dict[str, Any]
Step = Callable[[], object]


def main() -> None:
    """Measure, print a Markdown table and write JSON."""
    parser = argparse.ArgumentParser(description="What a step of a default model costs with each kernel.")
    parser.add_argument(
        "sources", nargs="*", type=Path, help="Parquet files with a label column; default: synthetic rows."
    )
    parser.add_argument("--label", default="label")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("build/bench-kernels.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        sources = arguments.sources or [_synthetic(Path(scratch) / "synthetic.parquet")]
        results = [
            measure_source(source, arguments.label, Path(scratch) / source.stem, arguments.turns) for source in sources
        ]
    wide = [measure_wide(dtype, arguments.turns) for dtype in (np.uint8, np.float32)]
    print(f"{markdown(results)}\n\n{wide_markdown(wide)}")  # noqa: T201 - the result
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"auto": describe_kernel("auto", "cpu"), "torch": torch.__version__, "sets": results, "wide": wide}
    arguments.out.write_text(json.dumps(content, indent=2) + "\n")


def measure_source(source: Path, label: str, folder: Path, turns: int) -> Result:
    """Prepare a file with default settings, and measure its default model."""
    prepare(str(source), folder, PrepareConfig(label=(label,)))
    manifest = read_manifest(folder)
    with open_split(folder, manifest, "train") as rows:
        config = resolve(TrainConfig(device="cpu", workers=1), rows.rows)
        model = untrained_model(choose_architecture(rows, manifest, config), manifest, config).train()
        batches = [copy.deepcopy(arrays) for arrays in itertools.islice(run_batches(rows, config), BATCHES)]
        groups = parameter_groups(model, config, rows.rows)

        steps = gradient_steps(model, batches, config)
    return {
        "set": source.stem,
        "rows of a step": config.batch_size,
        "parameters": parameter_count(model),
        "gradient": milliseconds_in_turns(steps, turns),
        "adamw": measure_adamw(parameter_count(model), groups, turns),
    }


def measure_wide(dtype: type[np.generic], turns: int) -> Result:
    """Measure gradients of a plain FastKAN on synthetic rows of many columns, also with products in bfloat16."""
    torch.manual_seed(0)
    architecture = plain_architecture()
    model = TabularFastKAN(architecture).train()
    rng = np.random.default_rng(0)
    size = (WIDE_ROWS, architecture.num_numeric)
    scores = rng.integers(256, size=size, dtype=np.uint8) if dtype == np.uint8 else rng.normal(size=size)
    batch = {
        "numeric": scores.astype(dtype),
        "labels": rng.integers(2, size=(WIDE_ROWS, 1), dtype=np.uint8),
        "dropout_key": np.zeros(WIDE_ROWS, np.int32),
    }
    config = resolve(TrainConfig(device="cpu", workers=1), WIDE_ROWS)

    steps = gradient_steps(model, [batch], config)
    return {"type": np.dtype(dtype).name, "gradient": milliseconds_in_turns(steps, max(1, turns // 5))}


def gradient_steps(model: TabularModel, batches: Sequence[Arrays], config: ResolvedTrainConfig) -> dict[str, Step]:
    """Return what computes the gradient of a batch by each kernel, and by the usual one with products in bfloat16."""

    def step_by(kernel: Kernel, config: ResolvedTrainConfig) -> Step:
        # As a worker has it: parameters and gradients are views of arrays.
        replica = Replica(copy.deepcopy(model), torch.device("cpu"), kernel)
        replica.load(flatten(model).numpy())
        turns = itertools.cycle(batches)
        return lambda: replica.compute_gradient(next(turns), config)

    steps: dict[str, Step] = {kernel: step_by(kernel, config) for kernel in KERNELS}
    return {**steps, BF16: step_by("auto", replace(config, precision="bf16"))}


def plain_architecture() -> ModelConfig:
    """Return FastKAN [768, 64, 1] on scores alone."""
    return ModelConfig(
        labels=("label",),
        model="fastkan",
        num_numeric=768,
        binary=(),
        cardinalities=(),
        embedded=(),
        one_hot_groups=(),
        missing=(),
        embedding_dim=1,
        members=1,
        hidden=(64,),
        num_centers=8,
        grid_min=-2.0,
        grid_max=2.0,
        input_norm="none",
        dropout=0.0,
        binary_dropout=0.0,
    )


def measure_adamw(parameters: int, groups: ParameterGroups, turns: int) -> dict[str, float]:
    """Measure the optimizer's step with the native extension, where it is built, and by numpy."""
    old_3P, new_3P = (initial_state(np.ones(parameters, np.float32)) for _ in range(2))
    gradient_P = np.random.default_rng(0).normal(size=parameters).astype(np.float32)
    optimizer, counts = FlatAdamW(groups), itertools.count(1)

    def usual() -> None:
        optimizer.step(old_3P, new_3P, gradient_P, lr=1e-3, count=next(counts))

    def by_numpy() -> None:
        with patch.object(adamw, "native_library", lambda: None):
            usual()

    return milliseconds_in_turns({"numpy": by_numpy, "auto": usual}, turns)


def milliseconds_in_turns(steps: dict[str, Step], turns: int) -> dict[str, float]:
    """Return the median CPU milliseconds of steps that run alternately."""
    return {name: 1e3 * seconds for name, seconds in in_turns(steps, turns).items()}


def markdown(results: Sequence[Result]) -> str:
    """Return a table of medians and of how many times faster ``auto`` is than ``recompute`` and numpy."""
    lines = [
        f"`auto` is {describe_kernel('auto', 'cpu')}; CPU milliseconds of a step on one thread.",
        "",
        "| data set | rows | parameters | eager | recompute | auto | speedup over recompute | auto, bf16 "
        "| AdamW numpy | AdamW auto | speedup of both |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        gradient, optimizer = result["gradient"], result["adamw"]
        before, after = gradient["recompute"] + optimizer["numpy"], gradient["auto"] + optimizer["auto"]
        lines.append(
            f"| {result['set']} | {result['rows of a step']} | {result['parameters']:,} | {gradient['eager']:.1f} "
            f"| {gradient['recompute']:.1f} | {gradient['auto']:.1f} | {gradient['recompute'] / gradient['auto']:.1f} "
            f"| {gradient[BF16]:.1f} | {optimizer['numpy']:.2f} | {optimizer['auto']:.2f} | {before / after:.1f} |"
        )
    return "\n".join(lines)


def wide_markdown(results: Sequence[Result]) -> str:
    """Return a table of the wide model's medians, and of how many times faster than the formula written out each is."""
    lines = [f"FastKAN [768, 64, 1], {WIDE_ROWS:,} rows, forward and backward pass:", ""]
    lines += ["| stored as | kernel | CPU ms | speedup over eager |", "|---|---|---:|---:|"]
    for result in results:
        eager = result["gradient"]["eager"]
        lines += [
            f"| {result['type']} | {kernel} | {milliseconds:.1f} | {eager / milliseconds:.1f} |"
            for kernel, milliseconds in result["gradient"].items()
        ]
    return "\n".join(lines)


def _synthetic(path: Path) -> Path:
    rng = np.random.default_rng(0)
    numeric = {f"number{index}": rng.normal(size=SYNTHETIC_ROWS) for index in range(8)}
    codes = {f"code{index}": rng.integers(5 + 5 * index, size=SYNTHETIC_ROWS) for index in range(8)}
    odds = numeric["number0"] * numeric["number1"] + (codes["code3"] % 3 == 0) + rng.normal(size=SYNTHETIC_ROWS)
    texts = {name: np.char.add("v", values.astype(str)) for name, values in codes.items()}
    pq.write_table(pa.table({**numeric, **texts, "label": (odds > 1).astype(np.int8)}), path)
    return path


if __name__ == "__main__":
    main()
