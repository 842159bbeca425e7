"""What a whole run costs compared with gradient-boosted trees: ``python -m benchmarks.speed FILE_OR_FOLDER...``.

``dkan prepare`` and ``dkan train`` with default settings are compared with another learner with early stopping, on the
same rows of each data set. All processes count, from the start of Python: imports, reading and preparing the data are
included. Runs are interleaved and CPU seconds compared, because absolute times drift on a shared machine.
"""

import logging
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.quality import scores
from benchmarks.quality.data import ROOT, DataSet, demo_flights, find_files, stage
from benchmarks.quality.models import MODELS
from benchmarks.quality.models.dkan import prepare_words, read_probabilities
from benchmarks.quality.runner import OK, Results, Settings, environment, run_fit
from dkan_core import ConfigError, UserError
from dkan_core.utils.storage.files import write_atomic, write_json

Cost = dict[str, float]
"""CPU seconds, with their parts where there are any, dkan's seconds, and ``average_precision`` on the test split."""
Row = dict[str, Any]

logger = logging.getLogger("benchmarks.speed")


def main(
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Parquet files, or folders of them; each file is a data set.")
    ] = None,
    label: Annotated[str, typer.Option(help="Label columns, separated by commas; * stands for any text.")] = (
        "label,label_*"
    ),
    reference: Annotated[str, typer.Option(help="Model to compare with: one of those in the quality benchmark.")] = (
        "lightgbm"
    ),
    against: Annotated[Path | None, typer.Option(help="Another checkout to compare with.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds, each with its own seed.")] = 3,
    threads: Annotated[
        int, typer.Option(min=1, help="Cores for each run. Threads that wait for each other use CPU time as well.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder of speed.json and speed.md.")] = Path("build/bench-speed"),
) -> None:
    """Compare the CPU seconds of whole runs, and their average precision."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    out = out.absolute()
    try:
        if reference not in MODELS:
            raise ConfigError(f"--reference: unknown model {reference}; expected one of {', '.join(MODELS)}")
        out.mkdir(parents=True, exist_ok=True)
        files = find_files(sources) if sources else [demo_flights(out)]
        sets = [stage(path, out / "data", label.split(",")) for path in files]
        use_cores(threads)
        checkouts = {"before": against.absolute(), "dkan": ROOT} if against else {"dkan": ROOT}
        rows = measure(sets, checkouts, reference, seeds, Settings(threads=threads, max_cpu_seconds=None), out)
    except UserError as error:
        logger.error("error: %s", error)
        raise typer.Exit(2) from None
    ratios = {name: geometric_mean([row["ratios"][name] for row in rows]) for name in checkouts}
    facts = {"reference": reference, "threads": threads, "seeds": seeds, "geometric_mean": ratios}
    write_json(out / "speed.json", {**facts, "sets": rows})
    text = markdown(rows, reference, ratios)
    write_atomic(out / "speed.md", text + "\n")
    typer.echo(text)


def use_cores(count: int) -> None:
    """Keep this process, and all that it starts, on so many cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def measure(
    sets: Sequence[DataSet], checkouts: dict[str, Path], reference: str, seeds: int, settings: Settings, out: Path
) -> list[Row]:
    """Return one row per data set: the costs of each turn, and the ratios of their medians to the reference's.

    Args:
        sets: The data sets.
        checkouts: Those of dkan, by the name that they get.
        reference: Model that dkan is compared with.
        seeds: Turns.
        settings: The same for all.
        out: For results and logs.
    """
    results = Results(out)
    costs: dict[str, dict[str, list[Cost]]] = {
        data.name: {name: [] for name in (reference, *checkouts)} for data in sets
    }
    for seed, data, counts in turns(sets, seeds):
        found = {reference: run_reference(data, reference, seed, settings, results)}
        for name, checkout in checkouts.items():
            found[name] = run_dkan(data, checkout, seed, settings, out)
        if not counts:
            continue
        for name, cost in found.items():
            costs[data.name][name].append(cost)
            cpu, ap = cost["cpu_seconds"], cost["average_precision"]
            logger.info("%s, seed %d, %s: %.1f CPU seconds, AP %.4f", data.name, seed, name, cpu, ap)
    return [_row(data, costs[data.name], reference) for data in sets]


def turns(sets: Sequence[DataSet], seeds: int) -> Iterator[tuple[int, DataSet, bool]]:
    """Yield seeds and data sets, and whether a turn counts: the first, on the smallest set, compiles all modules."""
    yield 0, min(sets, key=lambda data: data.rows["train"]), False
    for seed in range(seeds):
        for data in sets:
            yield seed, data, True


def run_reference(data: DataSet, model: str, seed: int, settings: Settings, results: Results) -> Cost:
    """Fit and score a model of the quality benchmark.

    Raises:
        ConfigError: It is not installed, or its fit has failed.
    """
    cell = run_fit(data, model, seed, settings, results)
    if cell["status"] != OK:
        raise ConfigError(f"--reference {model} on {data.name}: {cell['status']}: {cell['reason']}")
    return {"cpu_seconds": cell["cpu_seconds"], "average_precision": cell["metrics"]["average_precision"]}


def run_dkan(data: DataSet, checkout: Path, seed: int, settings: Settings, out: Path) -> Cost:
    """Prepare and train by the commands of a checkout, with default settings; score the test split.

    Raises:
        ConfigError: A command has failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=out))
    prepared, run, scored = folder / "prepared", folder / "run", folder / "scores.parquet"
    commands = [
        prepare_words(data, prepared, seed),
        ["train", str(prepared), f"--out={run}", f"--seed={seed}"],
        ["predict", str(run / "model"), str(data.path("test")), f"--out={scored}"],
    ]
    cpu, seconds = {}, {}
    for words in commands:
        started = time.perf_counter()
        cpu[words[0]] = cpu_seconds(words, checkout, settings.threads)
        seconds[words[0]] = time.perf_counter() - started
    labels_NL, scores_NL = data.labels_NL(data.read("test")), read_probabilities(scored, data.labels)
    shutil.rmtree(folder)
    return {
        "prepare": cpu["prepare"],
        "train": cpu["train"],
        "cpu_seconds": cpu["prepare"] + cpu["train"],
        "seconds": seconds["prepare"] + seconds["train"],
        "average_precision": scores.score(labels_NL, scores_NL, data.labels)["average_precision"],
    }


def cpu_seconds(words: Sequence[str], checkout: Path, threads: int) -> float:
    """Run a command of ``dkan``; return the CPU seconds of all its processes.

    Raises:
        ConfigError: It has failed.
    """
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dkan_core", *words],
            cwd=checkout,
            env={**environment(threads), **path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        # With that of every process that it has waited for.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        if process.returncode:
            raise ConfigError(f"dkan {' '.join(words)}: {output.read().decode(errors='replace')[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def _row(data: DataSet, costs: dict[str, list[Cost]], reference: str) -> Row:
    medians = {name: statistics.median(cost["cpu_seconds"] for cost in found) for name, found in costs.items()}
    ratios = {name: medians[name] / medians[reference] for name in costs if name != reference}
    return {"set": data.name, "rows": data.rows["train"], "medians": medians, "ratios": ratios, "turns": costs}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(statistics.fmean(map(math.log, values)))


def markdown(rows: Sequence[Row], reference: str, ratios: dict[str, float]) -> str:
    """Return a table, and the geometric mean of the ratios.

    It has medians of CPU seconds with their ratios, of dkan's seconds, and mean and spread of the AP.

    Args:
        rows: One per data set.
        reference: Model that dkan is compared with.
        ratios: The geometric mean over the sets of each checkout of dkan.
    """
    heads = ["data set", "train rows", f"{reference}, CPU s", *(f"{name}, CPU s (prepare + train)" for name in ratios)]
    heads += [*(f"{name}, s" for name in ratios), *(f"{name} / {reference}" for name in ratios)]
    heads += [*(f"AP {name}" for name in (reference, *ratios))]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in rows:
        cells = [row["set"], f"{row['rows']:,}", f"{row['medians'][reference]:.1f}"]
        cells += [f"{row['medians'][name]:.1f} ({_parts(row['turns'][name])})" for name in ratios]
        cells += [f"{statistics.median(cost['seconds'] for cost in row['turns'][name]):.1f}" for name in ratios]
        cells += [f"{row['ratios'][name]:.2f}" for name in ratios]
        cells += [_precision(row["turns"][name]) for name in (reference, *ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    means = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return "\n".join([*lines, "", f"Geometric mean of the ratios: {means}."])


def _parts(costs: Sequence[Cost]) -> str:
    return " + ".join(f"{statistics.median(cost[part] for cost in costs):.1f}" for part in ("prepare", "train"))


def _precision(costs: Sequence[Cost]) -> str:
    values = [cost["average_precision"] for cost in costs]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


if __name__ == "__main__":
    typer.run(main)
