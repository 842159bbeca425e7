"""Small tables as Parquet files, for the tests of preparation."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkan_core import PrepareConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import all_batches, open_split

ROWS = 3000
CONFIG = PrepareConfig(label=("y",), weight="row")


def make_rows(rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "x": rng.normal(size=rows).astype(np.float32),
            "age": pa.array(rng.integers(18, 60, rows), mask=rng.random(rows) < 0.1),
            "city": pa.array(rng.choice(np.array(["Oslo", "Rome", "Bern", None]), rows).tolist(), pa.string()),
            "y": (np.arange(rows) % 2).astype(np.int8),
            "row": np.arange(rows),
        }
    )


def write(table: pa.Table, folder: Path, files: int = 1, **options: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    bounds = np.linspace(0, len(table), files + 1).astype(int)
    paths = [folder / f"part-{index:03}.parquet" for index in range(files)]
    for path, (start, stop) in zip(paths, itertools.pairwise(bounds), strict=True):
        pq.write_table(table.slice(start, stop - start), path, **options)
    return paths


def replace_unnoticed(path: Path) -> None:
    """Replace a file by one with other numbers in it, of the same size and time."""
    before, table = path.stat(), pq.read_table(path)
    aside = path.with_name("aside")
    pq.write_table(table.set_column(0, "x", pc.negate(table["x"])), aside)
    os.utime(aside, ns=(before.st_atime_ns, before.st_mtime_ns))
    aside.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read(folder: Path, split: str) -> dict[str, npt.NDArray[Any]]:
    """Return all rows of a split of prepared data."""
    with open_split(folder, read_manifest(folder), split) as reader:
        batches = list(all_batches(reader, 1000))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def row_numbers(folder: Path, split: str) -> list[int]:
    """Return which rows of the source lie in a split, by their weights."""
    found: list[int] = read(folder, split)["weight"].astype(int).tolist()
    return found
