"""How often bands cover the true curve: ``python -m benchmarks.bands``.

Rows are drawn whose log-odds are a sum of known curves. Models with default settings are trained on them and explained
on their validation split, as ``dkan explain`` does. A band covers a value if the true curve lies within it there;
values are weighted by their rows. For comparison, the coverage of the members' spread alone is shown.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.explanation.curves import HALF_WIDTHS, Curve
from dkan_core.explanation.explain import read_rows
from dkan_core.explanation.label_explanation import Effort, read_label
from dkan_core.model.calibration import sigmoid
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.arrays import Float64

CURVES: Mapping[str, Callable[[Float64], Float64]] = {
    "line": lambda x: 0.8 * x,
    "bowl": lambda x: 0.5 * (np.square(x) - 1),
    "wave": lambda x: 0.9 * np.sin(2 * x),
    "hinge": lambda x: 1.2 * np.maximum(x, 0),
    "step": lambda x: np.where(x > 0.5, 1.0, 0.0),
    "logistic": lambda x: 1.5 * sigmoid(4 * x),
    "nothing": lambda x: 0 * x,
    "count": lambda x: 0.15 * (x - 4),
}
LEVELS = {"a": 0.8, "b": 0.3, "c": 0.0, "d": -0.2, "e": -0.6, "f": -1.0}
LEVEL_SHARES = (0.3, 0.25, 0.2, 0.12, 0.08, 0.05)


@dataclass(frozen=True)
class Case:
    """What rows are like."""

    rows: int
    shift: float
    """Log-odds of a row whose curves are all zero."""

    correlation: float = 0.0
    """Between any two numbers."""

    interaction: float = 0.0
    """Factor of the product of two columns, which is no part of any curve."""


CASES = (
    Case(3_000, -1.0),
    Case(3_000, -3.0, correlation=0.3),
    Case(12_000, -1.0),
    Case(12_000, -1.5, interaction=0.5),
    Case(40_000, -2.0, correlation=0.3),
)
app = typer.Typer(add_completion=False)


def make_rows(case: Case, seed: int) -> pa.Table:
    """Return rows with columns named as their curves are, and the column ``label``."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=(case.rows, 1))
    normal = generator.normal(size=(case.rows, len(CURVES)))
    values = np.sqrt(1 - case.correlation) * normal + np.sqrt(case.correlation) * shared
    columns = dict(zip(CURVES, values.T, strict=True)) | {"count": generator.poisson(4, case.rows).astype(float)}
    level = generator.choice(list(LEVELS), case.rows, p=LEVEL_SHARES)
    log_odds = case.shift + np.array([LEVELS[name] for name in level.tolist()])
    log_odds += sum(curve(columns[name]) for name, curve in CURVES.items())
    log_odds += case.interaction * columns["line"] * columns["bowl"]
    label = generator.random(case.rows) < sigmoid(log_odds)
    return pa.table({**columns, "level": level.tolist(), "label": label.astype(np.int8)})


def curves_of(case: Case, seed: int, folder: Path) -> list[Curve]:
    """Return the curves of a model with default settings, trained on rows of its own."""
    pq.write_table(make_rows(case, 1000 + seed), folder / "rows.parquet")
    manifest = prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",), seed=seed))
    trained = train(folder / "data", folder / "run", TrainConfig(seed=seed))
    arrays = read_rows(folder / "data", manifest, "valid", 20_000)
    effort = Effort(shuffles=0, slopes=False, maps=0)
    saved = SavedModel(Path(trained.model))
    return read_label(saved, arrays, split="valid", label="label", effort=effort, seed=0).curves


def covered(curve: Curve) -> tuple[float, float, float]:
    """Return the share of values that the band covers, what the members' would, and the mean half-width."""
    weight_P = np.array([point.rows for point in curve.points]) / sum(point.rows for point in curve.points)
    true_P = np.array([_true_effect(curve.name, point.value, point.name) for point in curve.points])
    true_P = true_P - weight_P @ true_P
    low_P, high_P = np.array([point.band for point in curve.points]).T
    half_P = (high_P - low_P) / 2
    spread_P = np.array([point.member_spread for point in curve.points])
    within_P = (low_P <= true_P) & (true_P <= high_P)
    by_members_P = np.abs(true_P - (low_P + high_P) / 2) <= HALF_WIDTHS * spread_P
    return float(weight_P @ within_P), float(weight_P @ by_members_P), float(weight_P @ half_P)


def _true_effect(name: str, value: float | None, level: str) -> float:
    return LEVELS[level] if value is None else float(CURVES[name](np.array(value)))


@app.command()
def main(seeds: Annotated[int, typer.Option("--seeds", help="Models of each kind of rows.")] = 4) -> None:
    """Print how often bands cover the true curve, by kind of rows and by curve."""
    by_case: dict[Case, list[tuple[float, float, float]]] = {}
    by_curve: dict[str, list[tuple[float, float, float]]] = {}
    for case, seed, curves in _trained(seeds):
        found = {curve.name: covered(curve) for curve in curves}
        by_case.setdefault(case, []).extend(found.values())
        for name, each in found.items():
            by_curve.setdefault(name, []).append(each)
        typer.echo(f"{case}, seed {seed}: {np.mean([*found.values()], axis=0).round(2)}")
    typer.echo(
        "\n| | covered by 90% bands | from the members' spread alone | half-width, in log-odds |\n|---|---:|---:|---:|"
    )
    groups = {**{str(case): found for case, found in by_case.items()}, **by_curve}
    groups["all"] = [each for found in by_case.values() for each in found]
    for name, group in groups.items():
        share, members, width = np.mean(group, axis=0)
        typer.echo(f"| {name} | {share:.0%} | {members:.0%} | {width:.2f} |")


def _trained(seeds: int) -> Iterator[tuple[Case, int, list[Curve]]]:
    for case in CASES:
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                yield case, seed, curves_of(case, seed, Path(folder))


if __name__ == "__main__":
    app()
