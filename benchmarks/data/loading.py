"""An epoch of shuffled batches by dkan and other loaders, interleaved in one process, compared with a plain copy.

The CPU time of the whole process counts, including its threads: on a shared machine it is more reliable than wall time,
and a loader takes it from the computation. The rows are the same for all; the uint8 of dkan are what its preparation
stores by default.
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data.generated import write_rows
from dkan_core import PrepareConfig, TrainConfig, prepare
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.data.loading.order import steps_per_epoch, stored_order
from dkan_core.training.setup.defaults import resolve
from dkan_core.utils.arrays import Arrays

Result = dict[str, Any]
Epoch = Callable[[], int]
"""Goes through all rows once and returns how many there were."""

MEMCPY, TORCH = "memcpy, float32", "DataLoader(TensorDataset), float32"
STREAMING, DATASETS = "mosaicml-streaming, float32", "Hugging Face datasets, float32"
MODULES = {STREAMING: "streaming", DATASETS: "datasets"}
BATCH_ROWS = 8192
PAUSE_SECONDS = 0.2
# Of the loaders that take a row at a time: what a row costs does not depend on how many there are.
SLOW_ROWS = 40_000


def measure_loading(folder: Path, features: int, rows: int, turns: int) -> list[Result]:
    """Load ``rows`` rows by each loader.

    Args:
        folder: For the rows, which go with it.
        features: Columns.
        rows: How many are generated; the train split has seven tenths.
        turns: How often each loader is measured; the median counts.
    """
    source = write_rows(folder / f"loaded-{features}.parquet", rows, features)
    with ExitStack() as stack:
        epochs: dict[str, Epoch] = {}
        for dtype in ("float32", "uint8"):
            data = folder / f"{features}-{dtype}"
            prepare(source, data, PrepareConfig(label=("label",), numeric_dtype=dtype))
            for place in ("memory", "disk"):
                reader = stack.enter_context(_opened(data, place))
                epochs[f"dkan, {dtype}, {place}"] = _epoch_of(reader, stack)
        with _opened(folder / f"{features}-float32", "disk") as reader:
            arrays = reader.gather(stored_order(reader.starts).extents(0, reader.rows))
        few = {name: array[:SLOW_ROWS] for name, array in arrays.items()}
        epochs |= {MEMCPY: _copied(arrays), TORCH: _by_torch(few)}
        if find_spec(MODULES[STREAMING]):
            epochs[STREAMING] = _by_streaming(few, folder / f"{features}-mds")
        if find_spec(MODULES[DATASETS]):
            epochs[DATASETS] = _by_datasets(few)
        return [{**result, "features": features} for result in _in_turns(epochs, turns)]


def _in_turns(epochs: dict[str, Epoch], turns: int) -> list[Result]:
    """Return rows per CPU second of each loader, and by how much it is faster than the others of the same turn."""
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    rows: dict[str, int] = {}
    for turn in range(turns + 1):
        print(f"loading, turn {turn} of {turns}", file=sys.stderr, flush=True)  # noqa: T201
        for name, epoch in epochs.items():
            began = time.process_time()
            rows[name] = epoch()
            # Of a row: slow loaders read fewer of them.
            seconds[name].append((time.process_time() - began) / rows[name])
    # The first turn of dkan verifies every block, and the first of any loader takes its memory.
    rest = {name: found[1:] for name, found in seconds.items()}

    def ratio(name: str, other: str) -> float:
        pairs = zip(rest[other], rest[name], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    return [
        {
            "loader": name,
            "rows": rows[name],
            "rows_per_cpu_second": 1 / statistics.median(rest[name]),
            "first_epoch_rows_per_cpu_second": 1 / found[0],
            "of_memcpy": ratio(name, MEMCPY),
            "of_torch": ratio(name, TORCH),
        }
        for name, found in seconds.items()
    ]


@contextmanager
def _opened(data: Path, place: Literal["memory", "disk"] | str) -> Iterator[ShardReader]:
    with open_split(data, read_manifest(data), "train") as reader:
        if place == "memory":
            reader.keep_in_memory()
        yield reader


def _epoch_of(reader: ShardReader, stack: ExitStack) -> Epoch:
    """Return an epoch of batches as a worker takes them."""
    config = resolve(TrainConfig(device="cpu", batch_size=BATCH_ROWS, epochs=1_000_000), reader.rows)
    slices, taken = stack.enter_context(closing(SliceBatches(reader, config, 0))), iter(range(10**9))

    def epoch() -> int:
        steps = range(steps_per_epoch(reader.rows, config.batch_size))
        rows = sum(len(slices.get(next(taken), 0)["labels"]) for _ in steps)
        # Until the thread has read as far ahead as it does: it must not go on in the time of the loader that is next.
        time.sleep(PAUSE_SECONDS)
        return rows

    return epoch


def _copied(arrays: Arrays) -> Epoch:
    targets = {name: np.ones_like(array) for name, array in arrays.items()}

    def epoch() -> int:
        for name, array in arrays.items():
            np.copyto(targets[name], array)
        return len(arrays["labels"])

    return epoch


def _by_torch(arrays: Arrays) -> Epoch:
    rows = TensorDataset(torch.from_numpy(arrays["numeric"]), torch.from_numpy(arrays["labels"]))
    loader = DataLoader(rows, batch_size=BATCH_ROWS, shuffle=True)
    return lambda: sum(len(labels) for _, labels in loader)


def _by_streaming(arrays: Arrays, folder: Path) -> Epoch:
    streaming: Any = importlib.import_module(MODULES[STREAMING])
    columns = {"x": f"ndarray:float32:{arrays['numeric'].shape[1]}", "y": "ndarray:uint8:1"}
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for x, y in zip(arrays["numeric"], arrays["labels"], strict=True):
            writer.write({"x": x, "y": y})
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH_ROWS)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH_ROWS)
    return lambda: sum(len(batch["y"]) for batch in loader)


def _by_datasets(arrays: Arrays) -> Epoch:
    datasets: Any = importlib.import_module(MODULES[DATASETS])
    rows = datasets.Dataset.from_dict({"x": arrays["numeric"], "y": arrays["labels"]}).with_format("torch")
    return lambda: sum(len(batch["y"]) for batch in rows.shuffle().iter(BATCH_ROWS))


def markdown(results: Sequence[Result]) -> str:
    """Return a table, and which loaders are not installed."""
    lines = [
        "| loader | features | rows | rows/CPU s | first epoch | relative to memcpy | relative to DataLoader |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each['loader']} | {each['features']} | {each['rows']:,} | {each['rows_per_cpu_second']:,.0f} "
        f"| {each['first_epoch_rows_per_cpu_second']:,.0f} | {each['of_memcpy']:.2f} | {each['of_torch']:.1f} |"
        for each in results
    ]
    absent = [name for name, module in MODULES.items() if find_spec(module) is None]
    return "\n".join([*lines, *(f"\n{name.split(',')[0]} is not installed." for name in absent)])
