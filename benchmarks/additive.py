"""An additive model on generated rows of a known additive function: are its curves right, and how fast is it?

``python -m benchmarks.additive --rows 1000000`` generates, prepares and trains. It prints the share of points of the
curves that lie within their 90% bands, and rows per second, compared with the default model. With ``--pairs``, products
of columns are added to the log-odds, and the cells of the pairs are checked as well.

Shape suffixes: N rows, F columns, P points.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.explanation.additive import AdditiveCurves
from dkan_core.explanation.columns import encode_values, source_columns
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import terms_of
from dkan_core.model.saved_model import SavedModel

Float64 = npt.NDArray[np.float64]
CHUNK_ROWS = 1_000_000
LABEL = "label"
# Of normal columns: what lies between is 95% of the rows.
POINTS = np.linspace(-2, 2, 41)
# Of the product of two columns.
PAIR_FACTOR = 0.3
# Of a pair's cells, those with fewer rows are left out: pages show them in gray.
MIN_CELL_ROWS = 30
# Of a normal band that covers 90%.
HALF_WIDTHS = 1.645

SHAPES: dict[str, Callable[[Float64], Float64]] = {
    "line": lambda x: 0.3 * x,
    "wave": lambda x: 0.4 * np.sin(2 * x),
    "hinge": lambda x: 0.5 * np.maximum(x, 0),
    "step": lambda x: np.where(x > 0.5, 0.5, 0.0),
    "bowl": lambda x: 0.15 * x**2,
    "logistic": lambda x: 0.8 / (1 + np.exp(-4 * x)),
    "nothing": lambda x: 0.0 * x,
}


def shape_of(column: int) -> tuple[str, Callable[[Float64], Float64]]:
    """Return the function of a column; the functions alternate."""
    return [*SHAPES.items()][column % len(SHAPES)]


def products_of(x_NF: Float64, pairs: int) -> list[Float64]:
    """Return what pairs of columns, the first and the second, the third and the fourth, add to the log-odds."""
    return [PAIR_FACTOR * x_NF[:, 2 * pair] * x_NF[:, 2 * pair + 1] for pair in range(pairs)]


def write_rows(folder: Path, rows: int, columns: int, pairs: int, seed: int) -> None:
    """Write rows of normal columns whose log-odds are a sum of their functions, and of products of two."""
    folder.mkdir(parents=True)
    for part, start in enumerate(range(0, rows, CHUNK_ROWS)):
        rng = np.random.default_rng([seed, part])
        x_NF = rng.normal(size=(min(CHUNK_ROWS, rows - start), columns))
        log_odds_N = -2.0 + sum(shape_of(column)[1](x_NF[:, column]) for column in range(columns))
        log_odds_N = log_odds_N + sum(products_of(x_NF, pairs))
        names = {f"{shape_of(column)[0]}_{column}": x_NF[:, column].astype(np.float32) for column in range(columns)}
        label_N = (rng.random(len(x_NF)) < 1 / (1 + np.exp(-log_odds_N))).astype(np.int8)
        pq.write_table(pa.table({**names, LABEL: label_N}), folder / f"{part:05}.parquet")


def coverage(saved: SavedModel) -> dict[str, tuple[float, float]]:
    """Return by function the share of points within the band, and the root mean squared error."""
    assert isinstance(saved.module, AdditiveFastKAN)
    curves = AdditiveCurves(saved.module)
    found: dict[str, list[Float64]] = {}
    weight_P = np.exp(-(POINTS**2) / 2)
    for column in source_columns(saved.preprocessor):
        name, function = shape_of(int(column.name.rpartition("_")[2]))
        members_PM = curves.of(column, encode_values(column, POINTS), 0)
        half_P = HALF_WIDTHS * curves.error_factor * members_PM.std(axis=1, ddof=1)
        true_P = function(POINTS)
        error_P = members_PM.mean(axis=1) - true_P
        # A constant belongs to the intercept.
        error_P = error_P - np.average(error_P, weights=weight_P)
        found.setdefault(name, []).append(np.stack([np.abs(error_P) <= half_P, error_P**2]))
    means = {name: np.mean(each, axis=(0, 2)) for name, each in found.items()}
    return {name: (float(mean[0]), float(np.sqrt(mean[1]))) for name, mean in means.items()}


def coverage_of_pairs(saved: SavedModel, source: Path, columns: int, pairs: int) -> tuple[float, float]:
    """Return the share of cells within the band, and the root mean squared error, weighted by their rows.

    Args:
        saved: The model.
        source: A file of the rows: what is true of a cell is the mean of its rows.
        columns: Numeric columns of the rows.
        pairs: Products in their log-odds.
    """
    assert isinstance(saved.module, AdditiveFastKAN)
    curves, terms, table = AdditiveCurves(saved.module), terms_of(saved.module), pq.read_table(source)
    names = [f"{shape_of(column)[0]}_{column}" for column in range(columns)]
    x_NF = np.stack([table[name].to_numpy().astype(np.float64) for name in names], axis=1)
    stored = saved.preprocessor.transform(table, str(source))
    indices_NT = saved.module.indices(torch.from_numpy(stored["numeric"]), None).numpy()
    features = [feature.name for feature in saved.preprocessor.numeric]
    sides = [frozenset(names[2 * pair : 2 * pair + 2]) for pair in range(pairs)]
    true_of = dict(zip(sides, products_of(x_NF, pairs), strict=True))
    found = []
    for index, term in enumerate(terms.layout.pairs, start=-len(terms.layout.pairs)):
        true_N = true_of.get(frozenset(features[feature] for feature in term.features), np.zeros(len(x_NF)))
        cell_N = indices_NT[:, index] - term.first
        rows_C = np.bincount(cell_N, minlength=term.size)
        true_C = np.bincount(cell_N, true_N, term.size) / np.maximum(rows_C, 1)
        members_CM = terms.table_VML[term.rows, :, 0]
        error_C = members_CM.mean(axis=1) - true_C
        inside_C = np.abs(error_C) <= HALF_WIDTHS * curves.error_factor * members_CM.std(axis=1, ddof=1)
        shown_C = rows_C >= MIN_CELL_ROWS
        found.append(np.stack([inside_C, error_C**2, rows_C])[:, shown_C])
    inside_C, square_C, rows_C = np.concatenate(found, axis=1)
    return float(inside_C.mean()), float(np.sqrt(np.average(square_C, weights=rows_C)))


def main(
    rows: Annotated[int, typer.Option(min=1000, help="Rows to generate.")] = 10_000_000,
    columns: Annotated[int, typer.Option(min=1, help="Numeric columns.")] = 28,
    pairs: Annotated[int, typer.Option(min=0, help="Products of two columns in the log-odds, and terms for them.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of rows and runs.")] = 0,
    default_model: Annotated[bool, typer.Option(help="Also train the default model.")] = True,
    epochs: Annotated[int, typer.Option(min=0, help="Epochs of both models; 0: from the number of rows.")] = 0,
) -> None:
    """Train on rows of a known additive function."""
    with tempfile.TemporaryDirectory(prefix="dkan-additive-") as scratch:
        folder = Path(scratch)
        write_rows(folder / "rows", rows, columns, pairs, seed)
        prepare(folder / "rows", folder / "data", PrepareConfig(label=(LABEL,), seed=seed))
        for model in ("additive", "auto") if default_model else ("additive",):
            config: dict[str, Any] = {"model": model, "seed": seed, "workers": 1, "epochs": epochs or None}
            if model == "additive":
                config["pairs"] = str(pairs)
            result = train(folder / "data", folder / model, TrainConfig(**config))
            speeds = [entry["rows_per_second"] for entry in result.history]
            quality = f"validation AP {result.average_precision:.4f}"
            typer.echo(f"{model}: {quality}, {np.median(speeds):,.0f} rows/s in {len(result.history)} evaluations")
        saved = SavedModel(folder / "additive" / "model")
        shares = coverage(saved)
        typer.echo(json.dumps({name: [round(share, 3), round(error, 4)] for name, (share, error) in shares.items()}))
        typer.echo(f"within their bands: {np.mean([share for share, _ in shares.values()]):.3f} of all points")
        if pairs:
            share, error = coverage_of_pairs(saved, folder / "rows" / "00000.parquet", columns, pairs)
            typer.echo(f"pairs: {share:.3f} of all cells within their bands, error {error:.4f}")


if __name__ == "__main__":
    typer.run(main)
