"""Preparation at two sizes of the same rows, in turns with the same written in other libraries where they are there."""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.generated import write_rows
from benchmarks.data.preparations import PREPARATIONS, installed

Result = dict[str, Any]


def measure_preparation(folder: Path, features: int, rows: int, turns: int) -> list[Result]:
    """Prepare ``rows`` and ten times as many.

    Args:
        folder: For the rows, which go with the next call.
        features: Columns.
        rows: Fewer of the two sizes.
        turns: How often each preparation is measured; the median counts.
    """
    results = []
    for count in (rows, 10 * rows):
        source = write_rows(folder / "rows.parquet", count, features)
        measured: dict[str, list[Result]] = {name: [] for name in installed()}
        for _ in range(turns):
            for name, found in measured.items():
                found.append(_prepare_once(name, source, folder / "prepared"))
        for name, found in measured.items():
            medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
            results.append({"by": name, "features": features, "rows": count, "megabytes": count * features * 4 / 1e6})
            results[-1] |= medians
    source.unlink()
    return results


def _prepare_once(name: str, source: Path, out: Path) -> Result:
    command = [sys.executable, "-m", "benchmarks.data.preparations", name, str(source), str(out)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(out)
    measured: Result = json.loads(done.stdout.splitlines()[-1])
    return measured


def markdown(results: Sequence[Result]) -> str:
    """Return a table; the rate between the two sizes leaves out what a preparation costs once."""
    lines = [
        "| by | features | rows | MB/CPU s | MB/CPU s between the sizes | CPU s | s | peak memory, MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    smaller: dict[tuple[str, int], Result] = {}
    for result in results:
        before = smaller.setdefault((result["by"], result["features"]), result)
        rate, between = result["megabytes"] / result["cpu_seconds"], ""
        if before is not result:
            added = result["cpu_seconds"] - before["cpu_seconds"]
            between = f"{(result['megabytes'] - before['megabytes']) / added:,.0f}"
        lines.append(
            f"| {result['by']} | {result['features']} | {result['rows']:,} | {rate:,.0f} | {between} "
            f"| {result['cpu_seconds']:.1f} | {result['seconds']:.1f} | {result['peak_bytes'] / 1e6:,.0f} |"
        )
    absent = [name for name in PREPARATIONS if name not in installed()]
    return "\n".join([*lines, *(f"\n{name} is not installed." for name in absent)])
