"""Published figures: written by the benchmark itself, and compared with later measurements."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy import stats

from benchmarks.quality.data import DataSet
from benchmarks.quality.report import table
from benchmarks.quality.runner import OK, Cell
from dkan_core import ConfigError, DataError
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import write_json

# One of a hundred checks of a figure that has not changed says that it fell: with ten sets, one run of ten.
SIGNIFICANCE = 0.01
# A single fit says nothing about how far seeds are apart.
MIN_SEEDS = 2
# Figures are written with six digits.
ROUNDING = 1e-6
NO_FIGURE = "-"

Runs = Mapping[tuple[str, str, int], Cell]
"""One fit each: by data set, model and seed."""


class Figure(Schema):
    """What a model reached on a data set."""

    set: str
    digest: str
    """Of the file and its labels, as ``DataSet`` has it: other rows have another AP."""

    model: str
    seeds: dict[str, Annotated[float, Field(ge=0, le=1)]]
    """AP on test, by seed."""

    average_precision: float
    """Their mean."""

    standard_error: float
    """That of the mean, over seeds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.seeds) < MIN_SEEDS:
            raise ValueError(f"seeds: must be at least {MIN_SEEDS}, got {len(self.seeds)}")
        return self


class Published(Schema):
    """The file."""

    format: Literal[1] = 1
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published figure beside the mean that was measured; None where there is no result."""

    figure: Figure
    measured: float | None
    tolerance: float | None
    """By how much the mean may fall with the luck of the seeds alone."""

    fell: bool
    """Whether it fell by more than that, or every fit failed."""


def publish(path: Path, sets: Sequence[DataSet], models: Sequence[str], cells: Runs) -> None:
    """Write the figures of these fits; a model with fewer than ``MIN_SEEDS`` results on a set has none there."""
    found = [(data, model, _by_seed(cells, data.name, model)) for data in sets for model in models]
    figures = [_figure(data, model, values) for data, model, values in found if len(values) >= MIN_SEEDS]
    write_json(path, Published(figures=tuple(figures)).model_dump())


def check_seeds(models: Mapping[str, int]) -> None:
    """Raise ConfigError unless every model is fitted with enough seeds to be published."""
    few = next((model for model, seeds in models.items() if seeds < MIN_SEEDS), None)
    if few is not None:
        raise ConfigError(f"--publish: {few} has {models[few]} seed; expected at least {MIN_SEEDS}")


def _figure(data: DataSet, model: str, values: Mapping[int, float]) -> Figure:
    aps = [*values.values()]
    return Figure(
        set=data.name,
        digest=data.digest,
        model=model,
        seeds={str(seed): round(value, 6) for seed, value in values.items()},
        average_precision=round(float(np.mean(aps)), 6),
        standard_error=round(float(np.std(aps, ddof=1)) / math.sqrt(len(aps)), 6),
    )


def read_published(path: Path) -> Published:
    """Read published figures.

    Raises:
        DataError: There is no such file, or it is not what ``publish`` writes.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; --publish {path} writes it")
    return read_json(Published, path.read_bytes(), str(path))


def check_comparable(published: Published, sets: Sequence[DataSet], models: Collection[str]) -> None:
    """Raise DataError unless there is something to compare, and each data set is the one that was published."""
    digests = {data.name: data.digest for data in sets}
    common = [figure for figure in published.figures if figure.set in digests and figure.model in models]
    if not common:
        names = sorted({f"{figure.model} on {figure.set}" for figure in published.figures})
        raise DataError(f"--check: nothing to compare; the published figures are of {', '.join(names) or 'no model'}")
    for figure in common:
        if digests[figure.set] != figure.digest:
            raise DataError(f"--check: {figure.set}: other rows or labels than those of the published figures")


def compare(published: Published, cells: Runs) -> list[Comparison]:
    """Compare every published figure with what was measured."""
    return [_comparison(figure, cells) for figure in published.figures]


def _by_seed(cells: Runs, name: str, model: str) -> dict[int, float]:
    found = {seed: cell for (data, fitted, seed), cell in cells.items() if (data, fitted) == (name, model)}
    return {seed: cell["metrics"]["average_precision"] for seed, cell in found.items() if cell["status"] == OK}


def _comparison(figure: Figure, cells: Runs) -> Comparison:
    """Compare means by the t-test of two samples whose seeds scatter alike."""
    measured = [*_by_seed(cells, figure.set, figure.model).values()]
    tried = any(key[:2] == (figure.set, figure.model) for key in cells)
    if not measured:
        return Comparison(figure=figure, measured=None, tolerance=None, fell=tried)
    before = [*figure.seeds.values()]
    freedom = len(before) + len(measured) - 2
    squares = sum(float(np.var(values)) * len(values) for values in (before, measured))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(measured)))
    tolerance = float(stats.t.ppf(1 - SIGNIFICANCE, freedom)) * error
    mean = float(np.mean(measured))
    fell = mean < figure.average_precision - tolerance - ROUNDING
    return Comparison(figure=figure, measured=mean, tolerance=tolerance, fell=fell)


def comparison_table(compared: Sequence[Comparison]) -> str:
    """Return the comparisons as a table, those that fell first."""
    header = ["data set", "model", "published", "measured", "difference", "seeds allow", ""]
    ordered = sorted(compared, key=lambda comparison: not comparison.fell)
    return table(header, [_cells(comparison) for comparison in ordered])


def _cells(comparison: Comparison) -> list[str]:
    figure = comparison.figure
    known = [figure.set, figure.model, f"{figure.average_precision:.4f}"]
    if comparison.measured is None or comparison.tolerance is None:
        return [*known, NO_FIGURE, NO_FIGURE, NO_FIGURE, "failed" if comparison.fell else "not measured"]
    difference = comparison.measured - figure.average_precision
    return [
        *known,
        f"{comparison.measured:.4f}",
        f"{difference:+.4f}",
        f"{-comparison.tolerance:+.4f}",
        "fell" if comparison.fell else "",
    ]
