"""The fixed cost of commands, in CPU seconds including all children: ``python -m benchmarks.startup``.

Each command runs as its own process, interleaved with that of another checkout if one is given: on a shared machine
only the ratios are meaningful.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
ROWS = 2_000
PREPARE = ["--label=label", "--overwrite"]
TRAIN = ["--epochs=1", "--batch-size=2000", "--hidden=8", "--device=cpu", "--overwrite"]

Command = Callable[[Path], list[str]]
COMMANDS: dict[str, Command] = {
    "--version": lambda _: ["--version"],
    "--help": lambda _: ["--help"],
    "train --help": lambda _: ["train", "--help"],
    "prepare": lambda folder: ["prepare", f"{folder}/rows.parquet", "--out", f"{folder}/prepared", *PREPARE],
    # One step and its evaluation: the rest is the start and the end of the processes.
    "train": lambda folder: ["train", f"{folder}/prepared", "--out", f"{folder}/run", *TRAIN],
    "predict": lambda folder: ["predict", f"{folder}/run/model", f"{folder}/rows.parquet", "--out", f"{folder}/scores"],
}


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="benchmarks.startup", description="The fixed cost of commands.")
    parser.add_argument("--against", type=Path, help="another checkout; default: this one alone")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    checkouts = [*([arguments.against] if arguments.against else []), ROOT]
    with tempfile.TemporaryDirectory() as scratch:
        folders = {checkout: write_rows(Path(scratch) / str(index)) for index, checkout in enumerate(checkouts)}
        rows = [(name, measure(command, folders, arguments.turns)) for name, command in COMMANDS.items()]
    print(markdown(rows))  # noqa: T201 - the result


def measure(command: Command, folders: dict[Path, Path], turns: int) -> list[float]:
    """Return the median CPU seconds of a command in each checkout.

    Args:
        command: Gives the words of the command for a folder of data.
        folders: The folder of each checkout.
        turns: How often each runs.
    """
    seconds: dict[Path, list[float]] = {checkout: [] for checkout in folders}
    for _ in range(turns):
        for checkout, folder in folders.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            _run(command(folder), checkout)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds[checkout].append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return [statistics.median(each) for each in seconds.values()]


def markdown(rows: list[tuple[str, list[float]]]) -> str:
    """Return a table: what each command takes, in the other checkout first."""
    compared = len(rows[0][1]) > 1
    heads = ["`dkan` ...", *(["before, CPU s"] if compared else []), "CPU s", *(["ratio"] if compared else [])]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, seconds in rows:
        ratio = [f"{seconds[-1] / seconds[0]:.2f}"] if compared else []
        lines.append(f"| {' | '.join([f'`{name}`', *(f'{each:.2f}' for each in seconds), *ratio])} |")
    return "\n".join(lines)


def _run(words: list[str], checkout: Path) -> None:
    command = [sys.executable, "-m", "dkan_core", *words]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=True)


def write_rows(folder: Path) -> Path:
    """Write rows to train on."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    columns = {f"x{index}": rng.normal(size=ROWS) for index in range(8)}
    label = (columns["x0"] + rng.normal(size=ROWS) > 0).astype(np.int8)
    pq.write_table(pa.table({**columns, "label": label}), folder / "rows.parquet")
    return folder


if __name__ == "__main__":
    main()
