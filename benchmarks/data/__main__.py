"""How fast data are prepared and loaded: ``python -m benchmarks.data``, by CPU time in interleaved runs."""

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

from benchmarks.data import loading, preparation

# Enough that the sample that the encoding is fitted to is full at the smaller size.
VALUES = 120_000_000
# More than caches hold: 400 MB as float32, of which the train split has seven tenths.
LOADED_VALUES = 100_000_000
PARTS = ("preparation", "loading")


def main() -> None:
    """Measure, print Markdown tables and write JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.data",
        description="How fast data are prepared and loaded: about 15 minutes on two idle cores with all libraries, "
        "and 12 GB of disk. Libraries that are not installed, or fail, are left out and named.",
    )
    parser.add_argument("--features", type=int, nargs="*", default=[100, 768])
    parser.add_argument(
        "--values", type=int, default=VALUES, help="values of the smaller size; the larger has ten times as many"
    )
    parser.add_argument(
        "--turns", type=int, default=1, help="rounds of preparation; batches are loaded five times as often"
    )
    parser.add_argument("--loaded-values", type=int, default=LOADED_VALUES)
    parser.add_argument("--parts", choices=PARTS, nargs="*", default=PARTS)
    parser.add_argument("--scratch", type=Path, help="folder for the rows; 12 GB with default options")
    parser.add_argument("--out", type=Path, default=Path("build/bench-data.json"))
    arguments = parser.parse_args()
    prepared: list[preparation.Result] = []
    loaded: list[loading.Result] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        for features in arguments.features:
            if "preparation" in arguments.parts:
                rows = arguments.values // features
                prepared += preparation.measure_preparation(Path(folder), features, rows, arguments.turns)
            if "loading" in arguments.parts:
                rows = arguments.loaded_values // features
                loaded += loading.measure_loading(Path(folder), features, rows, 5 * arguments.turns)
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}"
    print(f"Measured on {machine}.\n\n{preparation.markdown(prepared)}\n\n{loading.markdown(loaded)}")  # noqa: T201 - the result
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "preparation": prepared, "loading": loaded}
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
