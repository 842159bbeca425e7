"""The command line: ``python -m benchmarks.training [SOURCE...]``; without a source, on the demo's flights."""

import logging
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.training import efficiency, exchange, healing, overhead, quality
from benchmarks.training.data import stage
from benchmarks.training.report import add, markdown, read
from dkan_core import DkanError

logger = logging.getLogger("benchmarks.training")


class Experiment(StrEnum):
    """What can be measured."""

    EXCHANGE = "exchange"
    EFFICIENCY = "efficiency"
    OVERHEAD = "overhead"
    HEALING = "healing"
    QUALITY = "quality"


Measure = Callable[..., list[dict[str, Any]]]
ON_DATA: dict[str, Measure] = {
    "efficiency": efficiency.measure,
    "overhead": overhead.measure,
    "healing": healing.measure,
    "quality": quality.measure,
}


app = typer.Typer(add_completion=False)


@app.command()
def main(
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Prepared folders, Parquet files, or folders of them.")
    ] = None,
    only: Annotated[list[Experiment] | None, typer.Option(help="Experiment to run; all without it.")] = None,
    label: Annotated[str, typer.Option(help="Label columns of Parquet sources, separated by commas.")] = "label",
    rows: Annotated[int, typer.Option(min=0, help="First rows of each Parquet source; 0 for all.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of exchange, efficiency and overhead.")] = 15,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of each fault in healing.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Of each run in quality.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Of each way in quality.")] = 3,
    out: Annotated[Path, typer.Option(help="JSON file; it keeps the experiments that are not run again.")] = Path(
        "build/bench-training.json"
    ),
    show: Annotated[bool, typer.Option("--show", help="Measure nothing; print the tables of --out.")] = False,
) -> None:
    """Measure what training on several workers costs, and print Markdown tables."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    options: dict[str, dict[str, Any]] = {
        "exchange": {"rounds": rounds},
        "efficiency": {"rounds": rounds},
        "overhead": {"rounds": rounds},
        "healing": {"repeats": repeats},
        "quality": {"epochs": epochs, "seeds": seeds},
    }
    chosen = [] if show else [each.value for each in only or list(Experiment)]
    try:
        run(chosen, sources or [], label, rows, options, out)
    except DkanError as error:
        logger.error("error: %s", error)
        raise typer.Exit(error.exit_code) from None
    typer.echo(markdown(read(out)))


def run(
    chosen: list[str], sources: list[Path], label: str, rows: int, options: dict[str, dict[str, Any]], out: Path
) -> None:
    """Run experiments and add their figures to ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "exchange" in chosen:
            logger.info("exchange")
            add(out, "exchange", exchange.measure(**options["exchange"]), options["exchange"])
        on_data = [name for name in chosen if name in ON_DATA]
        sets = stage(sources, folder, label=label, rows=rows) if on_data else []
        for name in on_data:
            found: list[dict[str, Any]] = []
            for number, data in enumerate(sets):
                logger.info("%s on %s, %d rows", name, data.name, data.train_rows)
                found += ON_DATA[name](data, folder / f"{name}-{number}", **options[name])
                add(out, name, found, options[name])


if __name__ == "__main__":
    app()
