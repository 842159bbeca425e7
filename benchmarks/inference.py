"""What explaining, evaluating and scoring cost: ``python -m benchmarks.inference RUN/model PREPARED ROWS.parquet``.

Whole commands, imports included, are interleaved with those of another checkout (``--against``), and their CPU seconds
are compared. The scoring rate is that of one thread with the rows in memory, encoding included. If LightGBM is
installed, it predicts the same rows, interleaved.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import typer

from benchmarks.timing import in_turns
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import score
from dkan_core.utils.torch_resources import torch_threads

HERE = Path(__file__).parents[1]
# As in ``benchmarks.quality``.
ROUNDS, PATIENCE = 1000, 50


def main(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    prepared: Annotated[Path, typer.Argument(help="Prepared data with its encoding.")],
    rows: Annotated[Path, typer.Argument(help="Raw Parquet file to score.")],
    label: Annotated[str, typer.Option(help="Label that LightGBM learns.")] = "label",
    against: Annotated[Path | None, typer.Option(help="Another checkout, its native extension built.")] = None,
    turns: Annotated[int, typer.Option(help="How often each command is run.")] = 3,
) -> None:
    """Measure and print Markdown tables."""
    with tempfile.TemporaryDirectory() as folder:
        model, prepared, rows = model.resolve(), prepared.resolve(), rows.resolve()
        commands = commands_of(model, prepared, rows, Path(folder))
        checkouts = [HERE] if against is None else [HERE, against.resolve()]
        for name, seconds in measure_commands(commands, checkouts, turns).items():
            ratio = statistics.median(own / other for own, other in zip(seconds[0], seconds[-1], strict=True))
            shown = " | ".join(f"{statistics.median(each):.2f}" for each in seconds)
            typer.echo(f"| dkan {name} | {shown} | {ratio:.2f} |")
    for name, rate in measure_scoring(model, pq.read_table(rows), label).items():
        typer.echo(f"| {name} | {rate:,.0f} rows per CPU second |")


def commands_of(model: Path, prepared: Path, rows: Path, folder: Path) -> dict[str, list[str | Path]]:
    """Return the commands, each of which can run again and again."""
    to_folder: list[str | Path] = ["--out", folder / "results", "--overwrite"]
    return {
        "explain": ["explain", model, prepared, "--out", folder / "explained", "--overwrite"],
        "evaluate": ["evaluate", model, prepared, *to_folder],
        "evaluate --no-explain": ["evaluate", model, prepared, "--no-explain", *to_folder],
        "predict": ["predict", model, rows, "--out", folder / "scored.parquet", "--overwrite"],
    }


def measure_commands(
    commands: Mapping[str, Sequence[str | Path]], checkouts: Sequence[Path], turns: int
) -> dict[str, list[list[float]]]:
    """Return for each command and checkout the CPU seconds of each turn."""
    return {
        name: [list(each) for each in zip(*([_run(words, at) for at in checkouts] for _ in range(turns)), strict=True)]
        for name, words in commands.items()
    }


def _run(words: Sequence[str | Path], checkout: Path) -> float:
    command = [sys.executable, "-m", "dkan_core", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    process = subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def measure_scoring(model: Path, table: pa.Table, label: str, turns: int = 7) -> dict[str, float]:
    """Return the rows that one thread turns into probabilities in a CPU second."""
    saved = SavedModel(model)
    (batch,) = table.combine_chunks().to_batches()

    def dkan() -> object:
        return score(saved.module, saved.preprocessor.transform(batch, "rows"), torch.device("cpu"))

    scorers: dict[str, Callable[[], object]] = {"dkan": dkan}
    trees = _lightgbm(table, label)
    if trees is not None:
        matrix_NF = _matrix(table, label)
        scorers[f"LightGBM, {trees.num_trees()} trees"] = lambda: trees.predict(matrix_NF, num_threads=1)
    with torch_threads(1):
        return {name: len(table) / seconds for name, seconds in in_turns(scorers, turns).items()}


def _lightgbm(table: pa.Table, label: str) -> Any:
    """Return boosted trees of default settings, stopped early on every fifth row; None without LightGBM."""
    try:
        import lightgbm
    except ImportError:
        return None
    matrix_NF, labels_N = _matrix(table, label), table[label].to_numpy()
    valid_N = np.arange(len(table)) % 5 == 0
    categories = [
        index for index, column in enumerate(_features(table, label)) if pa.types.is_string(table[column].type)
    ]
    train = lightgbm.Dataset(matrix_NF[~valid_N], labels_N[~valid_N], categorical_feature=categories)
    valid = train.create_valid(matrix_NF[valid_N], labels_N[valid_N])
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    settings = {"objective": "binary", "verbose": -1, "num_threads": 2}
    return lightgbm.train(settings, train, ROUNDS, valid_sets=[valid], callbacks=[stop])


def _features(table: pa.Table, label: str) -> list[str]:
    return [name for name in table.column_names if name != label]


def _matrix(table: pa.Table, label: str) -> npt.NDArray[np.float64]:
    """Return the rows as LightGBM takes them: categories as numbers, NaN where missing."""
    columns = []
    for name in _features(table, label):
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type):
            column = pc.dictionary_encode(column).indices
        columns.append(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return np.stack(columns, axis=1)


if __name__ == "__main__":
    typer.run(main)
