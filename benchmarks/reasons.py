"""How accurate and how fast reasons are: ``python -m benchmarks.reasons RUN/model ROWS.parquet``.

Contributions are compared with Shapley values. These are estimated by adding the columns of a row to a background row
one by one, in a random order and its reverse, for many background rows. Two such estimates show how much they differ by
chance. Speed is rows per second of CPU time on one thread.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import typer

from dkan_core.data.source.files import find_parquet
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.explanation.columns import source_columns
from dkan_core.explanation.contributions import BACKGROUND_ROWS, ContributionExplainer, background_rows
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import log_odds
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.torch_resources import torch_threads

CPU = torch.device("cpu")
Contributions = npt.NDArray[np.floating]

app = typer.Typer(add_completion=False)


def shapley_estimate(saved: SavedModel, arrays: Arrays, background: Arrays, seed: int) -> Contributions:
    """Return Shapley values of the first label by permutations, ``(N, F)``."""
    columns, random = source_columns(saved.preprocessor), np.random.default_rng(seed)
    rows, count = len(next(iter(arrays.values()))), len(next(iter(background.values())))
    found_NF = np.zeros((rows, len(columns)))
    for drawn in range(count):
        order = random.permutation(len(columns))
        for sequence in (order, order[::-1]):
            mixed = {name: np.repeat(array[drawn : drawn + 1], rows, axis=0) for name, array in background.items()}
            before_N = log_odds(saved.module, mixed, CPU).numpy()[:, 0]
            for column in sequence:
                for name, index in columns[column].indices:
                    mixed[name][:, index] = arrays[name][:, index]
                after_N = log_odds(saved.module, mixed, CPU).numpy()[:, 0]
                found_NF[:, column] += after_N - before_N
                before_N = after_N
    return found_NF / (2 * count)


def timed(compute: Callable[[], Contributions]) -> tuple[Contributions, float]:
    """Return what is computed, and the seconds of CPU time it took."""
    start = time.process_time()
    return compute(), time.process_time() - start


def agreement(found_NF: Contributions, reference_NF: Contributions) -> list[str]:
    """Return the share of rows with the same strongest column, and the correlation."""
    same = np.mean(np.abs(found_NF).argmax(axis=1) == np.abs(reference_NF).argmax(axis=1))
    return [f"{same:.2f}", f"{np.corrcoef(found_NF.ravel(), reference_NF.ravel())[0, 1]:.3f}"]


@app.command()
def main(
    model: Annotated[Path, typer.Argument(metavar="RUN/model", help="Model.")],
    source: Annotated[str, typer.Argument(metavar="ROWS.parquet", help="Rows to explain.")],
    rows: Annotated[int, typer.Option(help="How many of them.")] = 200,
    background: Annotated[int, typer.Option(help="Background rows of each Shapley estimate.")] = 200,
) -> None:
    """Print a row for each way, compared with Shapley values over all background rows."""
    saved = SavedModel(model)
    (path,) = find_parquet([source])
    batch = next(read_batches(open_file(path), saved.preprocessor.columns))
    # From all over it: neighbouring rows of a file are often alike.
    indices = np.linspace(0, len(batch) - 1, min(rows, len(batch))).astype(np.int64)
    arrays = saved.preprocessor.transform(batch.take(pa.array(indices)), path)
    drawn = background_rows(saved.preprocessor, source_columns(saved.preprocessor), 2 * background)
    halves = [{name: array[half::2] for name, array in drawn.items()} for half in (0, 1)]
    typer.echo("| method | background rows | rows/s | same strongest column | correlation |\n|---|---:|---:|---:|---:|")
    with torch_threads(1):
        estimates = [
            timed(lambda half=half, seed=seed: shapley_estimate(saved, arrays, half, seed))  # type: ignore[misc]
            for seed, half in enumerate(halves)
        ]
        reference_NF = (estimates[0][0] + estimates[1][0]) / 2
        _print_row("Shapley, against a second sample", background, estimates[0], estimates[1][0])
        few = {name: array[:BACKGROUND_ROWS] for name, array in halves[0].items()}
        way = timed(lambda: shapley_estimate(saved, arrays, few, 2))
        _print_row("Shapley", BACKGROUND_ROWS, way, reference_NF)
        for count in (BACKGROUND_ROWS // 2, BACKGROUND_ROWS, 2 * BACKGROUND_ROWS):
            explainer = ContributionExplainer(saved.module, saved.preprocessor, CPU, background=count)
            way = timed(lambda explainer=explainer: explainer.explain(arrays)[:, :, 0])  # type: ignore[misc]
            _print_row("expected gradients", count, way, reference_NF)


def _print_row(way: str, background: int, found: tuple[Contributions, float], reference_NF: Contributions) -> None:
    found_NF, seconds = found
    cells = [way, str(background), f"{len(found_NF) / seconds:,.0f}", *agreement(found_NF, reference_NF)]
    typer.echo(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    app()
