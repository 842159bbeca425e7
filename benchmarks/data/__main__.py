"""How fast data are prepared: ``python -m benchmarks.data``, by the CPU time of processes that take turns."""

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

from benchmarks.data import preparation

# Enough that the sample that the encoding is fitted to is full at the smaller size.
VALUES = 120_000_000


def main() -> None:
    """Measure, print Markdown tables and write JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.data", description="How fast data are prepared.")
    parser.add_argument("--features", type=int, nargs="*", default=[100, 768])
    parser.add_argument("--values", type=int, default=VALUES, help="of the smaller size; the larger has ten times more")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="folder for the rows; 12 GB with default options")
    parser.add_argument("--out", type=Path, default=Path("build/bench-data.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        prepared = [
            result
            for features in arguments.features
            for result in preparation.measure_preparation(
                Path(folder), features, arguments.values // features, arguments.turns
            )
        ]
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}"
    print(f"Measured on {machine}.\n\n{preparation.markdown(prepared)}")  # noqa: T201 - the result
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"machine": machine, "preparation": prepared}, indent=2) + "\n")


if __name__ == "__main__":
    main()
