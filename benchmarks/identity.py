"""Do the intercept and the shown terms of additive models add up to the log-odds, on every row of some data sets?

``python -m benchmarks.identity SETS`` trains an additive model on each data set. On all rows of all splits, it compares
the log-odds in float64 with the sum of the intercept and the terms, as ``--reasons`` and the pages show them, and these
sums with the float32 numbers that probabilities are computed from. It ends with code 1 if a data set differs by more
than 1e-9.

Shape suffixes: N rows, L labels.
"""

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.quality.data import SPLIT, DataSet, find_files, stage
from dkan_core import PrepareConfig, TrainConfig, UserError, prepare, train
from dkan_core.config.prepare import SPLITS
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.explanation.additive import AdditiveExplainer
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import terms_of
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import log_odds
from dkan_core.utils.arrays import Arrays

LIMIT = 1e-9
# Contributions that are computed at once, 64 MB.
CELLS = 1 << 23
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a model of one set says."""

    rows: int
    terms: int
    """Columns and pairs."""

    exact: float
    """Largest difference of a sum of terms from the log-odds in float64."""

    scored: float
    """From the log-odds in float32, which probabilities are made of."""

    average_precision: float
    """On validation."""


def fit(data: DataSet, folder: Path, seed: int) -> tuple[Path, Path]:
    """Prepare a set and train an additive model; return the prepared folder and the model's."""
    prepared = folder / "prepared"
    config = PrepareConfig(label=data.labels, split_column=SPLIT, seed=seed)
    prepare([data.path(split) for split in SPLITS], prepared, config)
    settings = TrainConfig(model="additive", seed=seed, workers=1, device="cpu")
    return prepared, Path(train(prepared, folder / "run", settings).model)


def compare(prepared: Path, model: Path) -> Found:
    """Compare a model's log-odds with its terms on all rows of a prepared folder."""
    saved = SavedModel(model)
    assert isinstance(saved.module, AdditiveFastKAN)
    explainer = AdditiveExplainer(saved.module, saved.preprocessor)
    intercept_L = terms_of(saved.module).intercept_L
    in_float64 = copy.deepcopy(saved.module).double()
    rows, largest = 0, np.zeros(2)
    step = max(64, CELLS // (len(explainer.sources) * len(intercept_L)))
    for arrays in _batches(prepared, step):
        summed_NL = intercept_L + explainer.exact(arrays).sum(axis=1)
        rows += len(summed_NL)
        answered = (log_odds(module, arrays, CPU).numpy() for module in (in_float64, saved.module))
        # Unlike ``max``, keeps a NaN.
        largest = np.maximum(largest, [np.abs(each_NL - summed_NL).max() for each_NL in answered])
    precision = float(saved.metrics["average_precision"])
    exact, scored = largest.tolist()
    return Found(rows=rows, terms=len(explainer.sources), exact=exact, scored=scored, average_precision=precision)


def _batches(prepared: Path, step: int) -> Iterator[Arrays]:
    manifest = read_manifest(prepared)
    for split in SPLITS:
        with open_split(prepared, manifest, split) as reader:
            yield from all_batches(reader, step)


def main(
    sources: Annotated[list[Path], typer.Argument(help="Parquet files, or folders of them; each file is a data set.")],
    label: Annotated[str, typer.Option(help="Label columns, separated by commas; * stands for any text.")] = (
        "label,label_*"
    ),
    seed: Annotated[int, typer.Option(help="Of preparation and training.")] = 0,
) -> None:
    """Compare log-odds with the sum of the terms."""
    failed = False
    try:
        typer.echo("| set | rows | terms | from float64 | from float32 | validation AP |")
        typer.echo("|---|---:|---:|---:|---:|---:|")
        for path in find_files(sources):
            with tempfile.TemporaryDirectory(prefix="dkan-identity-") as scratch:
                data = stage(path, Path(scratch) / "data", label.split(","))
                found = compare(*fit(data, Path(scratch), seed))
            failed |= not found.exact <= LIMIT
            differences = f"{found.exact:.1g} | {found.scored:.1g}"
            typer.echo(
                f"| {data.name} | {found.rows:,} | {found.terms:,} | {differences} | {found.average_precision:.4f} |"
            )
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
