"""``python -m benchmarks.strategies``: every strategy by number of workers and size of data, on generated rows."""

import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.strategies import data_parallel, runs, sums
from benchmarks.strategies.ways import DATA_PARALLEL
from benchmarks.training.report import Table, facts
from dkan_core import DkanError
from dkan_core.utils.storage.files import write_atomic, write_json

ROWS, QUICK_ROWS = [100_000, 400_000, 1_600_000], [8_000, 32_000, 128_000]
BYTES = [1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26]

RUNS = Table(
    {
        "rows": ("rows", ",d"),
        "strategy": ("strategy", ""),
        "workers": ("workers", "d"),
        "epoch_seconds": ("s per epoch", ".2f"),
        "speedup": ("speedup", ".2f"),
        "efficiency": ("efficiency", ".2f"),
        "exchange_mb": ("MB exchanged per worker and epoch", ",.1f"),
        "average_precision": ("AP", ".4f"),
    },
    "Seconds of an epoch after the first, median of rounds; speedup over single in the same round; efficiency is "
    "speedup divided by workers. Exchanged bytes are computed. AP on the validation split after the last epoch.",
)
SUMS = Table(
    {
        "backend": ("torch's backend", ""),
        "workers": ("workers", "d"),
        "bytes": ("bytes", ",d"),
        "ring_ms": ("dkan's ring, ms", ".3f"),
        "torch_ms": ("torch's all-reduce, ms", ".3f"),
        "ratio": ("ratio", ".2f"),
    },
    "Sum of a buffer over all workers, median; the ring sends through the same backend.",
)

logger = logging.getLogger("benchmarks.strategies")
app = typer.Typer(add_completion=False)


@app.command()
def main(
    rows: Annotated[list[int] | None, typer.Option(help="Rows of generated data; several times for several.")] = None,
    features: Annotated[int, typer.Option(min=2, help="float32 columns.")] = 28,
    workers: Annotated[list[int] | None, typer.Option(help="Numbers of workers.  [default: 1, 2, 4]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all runs.")] = 3,
    epochs: Annotated[int, typer.Option(min=2, help="Of each run; the first is not timed.")] = 3,
    members: Annotated[int, typer.Option(min=1, help="Of the model.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a global batch.")] = 1024,
    device: Annotated[str, typer.Option(help="As of dkan train.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="One round on less data: 10 minutes on two cores.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of strategies.json, strategies.md and strategies.png.")] = Path(
        "build/bench-strategies"
    ),
) -> None:
    """Compare all strategies: time per epoch, speedup, efficiency, exchanged bytes and average precision."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    sizes = rows or (QUICK_ROWS if quick else ROWS)
    counts = workers or [1, 2, 4]
    options = runs.Options(
        workers=counts,
        rounds=1 if quick else rounds,
        epochs=epochs,
        settings={"members": members, "batch_size": batch_size, "device": device},
    )
    try:
        with tempfile.TemporaryDirectory() as scratch:
            table = [row for size in sizes for row in runs.measure(size, features, options, Path(scratch))]
    except DkanError as error:
        logger.error("error: %s", error)
        raise typer.Exit(error.exit_code) from None
    summed = sums.measure(BYTES[:4] if quick else BYTES, [count for count in counts if count > 1])
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "strategies.json", {**facts(), "settings": vars(options), "runs": table, "sums": summed})
    from benchmarks.strategies.page import draw  # imports matplotlib, which takes longer than all the rest

    (out / "strategies.png").write_bytes(draw(table, summed))
    text = markdown(table, summed, counts)
    write_atomic(out / "strategies.md", text + "\n")
    typer.echo(text)


def markdown(table: list[runs.Row], summed: list[runs.Row], workers: list[int]) -> str:
    """Return both tables, and why a way is not in them."""
    machine = facts()
    lines = ["## Strategies", "", f"{RUNS.note} ({machine['processor']}, {machine['cores']} cores)", ""]
    lines += [*RUNS.markdown(table), ""]
    if not any(map(data_parallel.is_possible, workers)):
        lines += [f"Not measured: {DATA_PARALLEL}, which needs two CUDA devices.", ""]
    return "\n".join([*lines, "## All-reduce by message size", "", SUMS.note, "", *SUMS.markdown(summed)])


if __name__ == "__main__":
    app()
