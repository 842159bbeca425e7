"""What continuing from a model gains on drifted rows: AP on the second half of the flights, compared with retraining.

    python examples/flights.py flights
    python -m benchmarks.continuing flights [--seeds 3] [--out build/continuing.json]

A model is trained on the flights from January to June. Then new ones arrive: those of July, or of July to December.
Every variant is evaluated on the test days of July to December, which none has seen.
"""

import argparse
import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.timing import cpu_seconds
from dkan_core import PrepareConfig, TrainConfig, evaluate, prepare, train

EARLY, LATE = (1, 6), (7, 12)
NEW_MONTHS = {"July": (7, 7), "July to December": LATE}

VARIANTS: dict[str, dict[str, Any] | None] = {
    "the earlier model as it is": None,
    "from scratch": {},
    "--init-from": {"init_from": True},
    "--init-from, learning rate of training from scratch": {"init_from": True, "learning_rate": 4e-3},
    "--init-from, one epoch": {"init_from": True, "epochs": 1},
    "--init-from, --freeze encoder": {"init_from": True, "freeze": ("encoder",)},
    "--init-from, --init-optimizer kept": {"init_from": True, "init_optimizer": "kept"},
}

logger = logging.getLogger("benchmarks.continuing")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("flights", type=Path, help="folder that examples/flights.py has written")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant")
    parser.add_argument("--out", type=Path, default=Path("build/continuing.json"), help="file of the figures")
    options = parser.parse_args()
    rows = pq.read_table(options.flights)
    with tempfile.TemporaryDirectory(prefix="dkan-") as scratch:
        found = [measure(rows, Path(scratch) / str(seed), seed) for seed in range(options.seeds)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    print(as_table(found))  # noqa: T201 - it is what the command is for


def measure(rows: pa.Table, folder: Path, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return test AP and CPU seconds of training by the months of the new rows and the variant."""
    folder.mkdir()
    roles = PrepareConfig(label=("label",), split_column="split", group="date")
    pq.write_table(of_months(rows, EARLY), folder / "early.parquet")
    prepare(folder / "early.parquet", folder / "early", roles)
    settings = TrainConfig(device="cpu", workers=1, seed=seed)
    earlier = train(folder / "early", folder / "earlier", settings)
    test = of_months(rows, LATE)
    pq.write_table(test.filter(pc.equal(test["split"], "test")), folder / "test.parquet")
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, months in NEW_MONTHS.items():
        new = folder / name.replace(" ", "-")
        pq.write_table(of_months(rows, months), f"{new}.parquet")
        prepare(f"{new}.parquet", f"{new}-anew", roles)
        prepare(f"{new}.parquet", f"{new}-like", replace(roles, label=(), like=earlier.model))
        found[name] = {}
        for variant, options in VARIANTS.items():
            before, model = cpu_seconds(), earlier.model
            if options is not None:
                start = {"init_from": earlier.model} if "init_from" in options else {}
                data = f"{new}-like" if start else f"{new}-anew"
                run = folder / "run"
                model = train(data, run, replace(settings, **{**options, **start}), overwrite=True).model
            seconds = cpu_seconds() - before
            scored = evaluate(model, folder / "test.parquet", folder / "eval", explain=False, overwrite=True)
            found[name][variant] = float(scored.metrics["average_precision"]), seconds
            logger.info("%s, %s: AP %.4f, %.0f CPU s", name, variant, *found[name][variant])
    return found


def of_months(rows: pa.Table, months: tuple[int, int]) -> pa.Table:
    """Return the flights of some months, the first and the last given."""
    month = rows["month"]
    return rows.filter(pc.and_(pc.greater_equal(month, months[0]), pc.less_equal(month, months[1])))


def as_table(found: list[dict[str, dict[str, tuple[float, float]]]]) -> str:
    """Return the means over the seeds as Markdown, with the largest distance of a seed from them."""
    names = [*NEW_MONTHS]
    lines = [f"| variant | {' | '.join(f'{name}: AP | CPU s' for name in names)} |", "|---|" + "---:|" * 2 * len(names)]
    for variant in VARIANTS:
        cells = []
        for name in names:
            values = np.array([each[name][variant] for each in found])
            mean, seconds = values.mean(axis=0)
            cells.append(f"{mean:.4f} ± {np.abs(values[:, 0] - mean).max():.4f} | {seconds:.0f}")
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
