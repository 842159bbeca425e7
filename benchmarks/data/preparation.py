"""Preparation of the same rows at two sizes, interleaved with the same in other libraries if they are installed."""

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

# A comparator that takes longer at the larger size is left out there.
LIMIT_SECONDS = 180


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
                print(f"preparing {count:,} rows of {features} features by {name}", file=sys.stderr, flush=True)  # noqa: T201
                found += _prepare_once(name, source, folder / "prepared")
        for name, found in measured.items():
            if not found:
                continue
            medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
            results.append({"by": name, "features": features, "rows": count, "megabytes": count * features * 4 / 1e6})
            results[-1] |= medians
    source.unlink()
    return results


def _prepare_once(name: str, source: Path, out: Path) -> list[Result]:
    """Return what one preparation took; nothing, and a message, where a comparator failed, of memory say."""
    command = [sys.executable, "-m", "benchmarks.data.preparations", name, str(source), str(out)]
    try:
        done = subprocess.run(command, check=name == "dkan", stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{name}: not done in {LIMIT_SECONDS} s", file=sys.stderr, flush=True)  # noqa: T201
        return []
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if done.returncode:
        print(f"{name}: failed with exit code {done.returncode}", file=sys.stderr, flush=True)  # noqa: T201
        return []
    return [json.loads(done.stdout.splitlines()[-1])]


def markdown(results: Sequence[Result]) -> str:
    """Return a table; the rate between the two sizes leaves out what a preparation costs once."""
    lines = [
        "| library | features | rows | MB/CPU s | marginal MB/CPU s | CPU s | s | peak memory, MB |",
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
