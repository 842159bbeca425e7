"""The command line: ``python -m benchmarks.quality FILE_OR_FOLDER...``; without a file, on the demo's flights."""

import logging
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import processor
from benchmarks.quality.data import DataSet, demo_flights, find_files, stage
from benchmarks.quality.models import MODELS
from benchmarks.quality.published import (
    Published,
    check_comparable,
    check_seeds,
    compare,
    comparison_table,
    publish,
    read_published,
)
from benchmarks.quality.report import markdown
from benchmarks.quality.runner import OK, Cell, Results, Settings, cell_key, run_fit
from benchmarks.quality.scores import bootstrap
from benchmarks.quality.summary import REFERENCE, add_differences, over_sets, set_rows
from dkan_core import ConfigError, UserError
from dkan_core.utils.resources import available_cores
from dkan_core.utils.storage.files import write_atomic

logger = logging.getLogger("benchmarks.quality")


def main(
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Parquet files, or folders of them; each file is a data set.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Models to compare, separated by commas; NAME:1 fits that model with the first seed only. "
            "Default: all; with --check those of the published figures."
        ),
    ] = None,
    reference: Annotated[str, typer.Option(help="Model that the others are compared with.")] = REFERENCE,
    label: Annotated[str, typer.Option(help="Label columns, separated by commas; * stands for any text.")] = (
        "label,label_*"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Fits of each model on each data set.")] = 3,
    max_cpu_seconds: Annotated[
        float, typer.Option(min=0, help="CPU seconds that a fit may use, the same for every model; 0 for no limit.")
    ] = 600,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a fit.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of results.json, results.md and results.png.")] = Path(
        "build/bench-quality"
    ),
    force: Annotated[bool, typer.Option("--force", help="Also repeat fits that already have a result.")] = False,
    publish_to: Annotated[
        Path | None, typer.Option("--publish", help="Also write the AP of every model, data set and seed to this file.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Compare with the figures in this file; code 1 if an AP dropped by more than seeds vary."),
    ] = None,
) -> None:
    """Compare dkan with other tabular learners on the same rows, with the same budget."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        published = None if check is None else read_published(check)
        chosen = _models(models or ",".join(_default_models(published)), seeds)
        if reference not in MODELS:
            raise ConfigError(f"--reference: unknown model {reference!r}; expected one of {', '.join(MODELS)}")
        if publish_to is not None:
            check_seeds(chosen)
        out.mkdir(parents=True, exist_ok=True)
        files = find_files(sources) if sources else [demo_flights(out.absolute())]
        sets = [stage(path, out.absolute() / "data", label.split(",")) for path in files]
        if published is not None:
            check_comparable(published, sets, chosen)
    except UserError as error:
        logger.error("error: %s", error)
        raise typer.Exit(2) from None
    settings = Settings(threads=min(threads, available_cores()), max_cpu_seconds=max_cpu_seconds or None)
    results = Results(out.absolute())
    cells = _run(sets, chosen, settings, results, force=force)
    report(sets, list(chosen), cells, settings, results, reference)
    logger.info("%s", out / "results.md")
    if publish_to is not None:
        publish(publish_to, sets, list(chosen), cells)
    if published is not None:
        compared = compare(published, cells)
        logger.info("%s", comparison_table(compared))
        raise typer.Exit(int(any(comparison.fell for comparison in compared)))


def _default_models(published: Published | None) -> list[str]:
    """Return the models to fit where none are named."""
    if published is None:
        return [*MODELS]
    return [*dict.fromkeys(figure.model for figure in published.figures)]


def _models(text: str, seeds: int) -> dict[str, int]:
    """Return the models and how many seeds each is fitted with."""
    parts = [part.partition(":") for part in text.split(",") if part.strip()]
    unknown = [name.strip() for name, _, _ in parts if name.strip() not in MODELS]
    if unknown or not parts:
        raise ConfigError(f"--models: unknown model {unknown[:1] or ''}; expected one of {', '.join(MODELS)}")
    wrong = [count for _, colon, count in parts if colon and not (count.isdecimal() and 1 <= int(count) <= seeds)]
    if wrong:
        raise ConfigError(f"--models: {wrong[0]!r} seeds; expected 1 to {seeds}")
    return {name.strip(): int(count) if colon else seeds for name, colon, count in parts}


def _run(
    sets: list[DataSet], models: dict[str, int], settings: Settings, results: Results, *, force: bool
) -> dict[tuple[str, str, int], Cell]:
    """Fit what has no result yet: seed by seed, so that a machine's slow hour falls on every model."""
    cells: dict[tuple[str, str, int], Cell] = {}
    for seed in range(max(models.values())):
        for data in sets:
            for model in [name for name, seeds in models.items() if seed < seeds]:
                key = cell_key(data, model, seed, settings)
                cell = None if force else results.find(key)
                if cell is None:
                    cell = {**run_fit(data, model, seed, settings, results), "key": key}
                    results.add(key, cell)
                    logger.info("%s, seed %d, %s: %s", data.name, seed, model, _outcome(cell))
                cells[data.name, model, seed] = cell
    return cells


def _outcome(cell: Cell) -> str:
    if cell["status"] != OK:
        return f"{cell['status']}, {cell['reason']}"
    return f"AP {cell['metrics']['average_precision']:.4f}, {cell['cpu_seconds']:.0f} CPU seconds"


def report(
    sets: list[DataSet],
    models: list[str],
    cells: dict[tuple[str, str, int], Cell],
    settings: Settings,
    results: Results,
    reference: str = REFERENCE,
) -> None:
    """Write the tables and the picture of these cells."""
    entries: list[dict[str, Any]] = []
    for data in sets:
        runs = {model: [cell for key, cell in cells.items() if key[:2] == (data.name, model)] for model in models}
        good = {
            model: [results.predictions(cell["key"]) for cell in found if cell["status"] == OK]
            for model, found in runs.items()
        }
        labels_NL = data.labels_NL(data.read("test"))
        resampled = bootstrap(labels_NL, {model: scored for model, scored in good.items() if scored})
        rows = set_rows(runs, resampled, reference)
        add_differences(rows, reference)
        entries.append({"data": asdict(data), "rows": rows})
    overall = over_sets([entry["rows"] for entry in entries])
    facts = {
        "reference": reference,
        "machine": _machine(),
        "settings": {**asdict(settings), "seeds": len({seed for _, _, seed in cells})},
        "versions": {name: found for cell in cells.values() for name, found in _named(cell["versions"]).items()},
    }
    results.content |= {**facts, "sets": entries, "over_sets": overall}
    results.write()
    write_atomic(results.out / "results.md", markdown(entries, overall, facts))
    from benchmarks.quality.picture import draw  # imports matplotlib, which takes longer than all the rest

    write_atomic(results.out / "results.png", draw(entries, reference))


def _named(versions: dict[str, str | None]) -> dict[str, str]:
    return {name: found for name, found in versions.items() if found is not None and name != "benchmark"}


def _machine() -> str:
    cores = f"{available_cores()} of {os.cpu_count()} cores usable"
    return f"{processor()}, {cores}, Python {platform.python_version()}"


if __name__ == "__main__":
    typer.run(main)
