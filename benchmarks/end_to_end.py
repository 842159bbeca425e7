"""The whole pipeline on generated rows, stage by stage: ``python -m benchmarks.end_to_end``.

Rows are written as Parquet, prepared, trained on for one epoch and evaluated by the commands of ``dkan``. LightGBM with
all rows in memory and XGBoost with its external memory train on the same files. Two sizes give the cost per row, and an
estimate for a size that does not fit this machine.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]
Result = dict[str, Any]

SPLITS = ("train", "valid", "test")
ROW_GROUP = 500_000
# LightGBM's default, for both: each further round costs as much.
ROUNDS, PATIENCE = 100, 50
POLL_SECONDS = 0.2


def main() -> None:
    """Measure both sizes, print a Markdown table and write JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.end_to_end",
        description="All stages on generated rows, extrapolated to more rows: 15 minutes on two idle cores, 6 GB of "
        "memory and 6 GB of disk. Learners that are not installed, or fail, are left out.",
    )
    parser.add_argument("--rows", type=int, nargs=2, default=[1_000_000, 10_000_000], help="the two sizes")
    parser.add_argument("--features", type=int, default=28)
    parser.add_argument("--estimate", type=int, default=100_000_000, help="rows to estimate the cost of")
    there = [name for name in OTHERS if find_spec(name)]
    parser.add_argument("--others", nargs="*", choices=tuple(OTHERS), default=there)
    parser.add_argument("--scratch", type=Path, help="folder for rows, prepared data and models")
    parser.add_argument("--out", type=Path, default=Path("build/bench-end-to-end.json"))
    parser.add_argument("--fit", nargs=2, metavar=("NAME", "SRC"), help=argparse.SUPPRESS)
    parser.add_argument("--generate", nargs=2, metavar=("ROWS", "SRC"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps({"average_precision": OTHERS[arguments.fit[0]](Path(arguments.fit[1]))}))  # noqa: T201
    elif arguments.generate:
        write_rows(Path(arguments.generate[1]), int(arguments.generate[0]), arguments.features)
    else:
        sizes = [measure(rows, arguments.features, arguments.others, arguments.scratch) for rows in arguments.rows]
        text = markdown(arguments.rows, sizes, arguments.estimate)
        print(text)  # noqa: T201 - the result
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"cores": len(os.sched_getaffinity(0)), "rows": arguments.rows, "stages": sizes}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


def write_rows(path: Path, rows: int, features: int) -> None:
    """Write numbers, some of them whole and some with heavy tails, whose label follows a few curves and one product."""
    rng = np.random.default_rng(0)
    names = [f"f{index:02d}" for index in range(features)]
    types = [*((name, pa.float32()) for name in names), ("label", pa.int8()), ("split", pa.string())]
    with pq.ParquetWriter(path, pa.schema(types)) as writer:
        for start in range(0, rows, ROW_GROUP):
            count = min(ROW_GROUP, rows - start)
            x_FN = rng.standard_normal((features, count), dtype=np.float32)
            odds = (
                np.sin(2 * x_FN[0]) + np.abs(x_FN[1]) + x_FN[2] * x_FN[3] + 0.5 * x_FN[4 : features // 2].sum(0) - 2.5
            )
            x_FN[features // 2 :: 2] = np.exp(x_FN[features // 2 :: 2])
            x_FN[features // 2 + 1 :: 2] = np.floor(3 * x_FN[features // 2 + 1 :: 2])
            label = rng.random(count, np.float32) < 1 / (1 + np.exp(-odds))
            split = np.array(SPLITS)[np.searchsorted([0.7, 0.8], rng.random(count))]
            writer.write_table(pa.table([*x_FN, label.astype(np.int8), split], schema=pa.schema(types)))


def measure(rows: int, features: int, others: list[str], scratch: Path | None) -> dict[str, Result]:
    """Return cost and average precision of each stage, and of the other learners."""
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        source, prepared, run, scores = (folder / part for part in ("rows.parquet", "prepared", "run", "scores"))
        this = [sys.executable, "-m", "benchmarks.end_to_end", "--features", str(features)]
        dkan = [sys.executable, "-m", "dkan_core"]
        stages: dict[str, list[Any]] = {
            "write the Parquet file": [*this, "--generate", str(rows), str(source)],
            "dkan prepare": [*dkan, "prepare", source, "--out", prepared, "--label=label", "--split-column=split"],
            "dkan train --epochs 1": [*dkan, "train", prepared, "--out", run, "--epochs=1"],
            "dkan evaluate": [*dkan, "evaluate", run / "model", prepared, "--out", scores, "--no-explain"],
            **{OTHER_NAMES[other]: [*this, "--fit", other, str(source)] for other in others},
        }
        results: dict[str, Result] = {}
        for stage, command in stages.items():
            print(f"{rows:,} rows: {stage}", file=sys.stderr, flush=True)  # noqa: T201
            try:
                results[stage] = watch(list(map(str, command)))
            except RuntimeError as error:
                if stage not in OTHER_NAMES.values():
                    raise
                print(error, file=sys.stderr, flush=True)  # noqa: T201
        found = json.loads((scores / "metrics.json").read_text())
        results["dkan evaluate"]["average_precision"] = found["average_precision"]
        results["dkan prepare"]["source_bytes"] = source.stat().st_size
        shutil.rmtree(prepared)
    return results


def watch(command: list[str]) -> Result:
    """Run a command to its end; return CPU seconds and peak memory of all its processes, and the seconds that it took.

    Raises:
        RuntimeError: It has failed.
    """
    started, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while (waited := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            peak = max(peak, sum(map(proportional_memory, process_tree(process.pid))))
            time.sleep(POLL_SECONDS)
        seconds, usage = time.perf_counter() - started, waited[2]
        process.returncode = os.waitstatus_to_exitcode(waited[1])
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {printed[-2000:]}")
    result = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "seconds": seconds, "peak_bytes": peak}
    last = printed.strip().rpartition("\n")[2]
    return {**result, **json.loads(last)} if last.startswith("{") else result


def process_tree(process: int) -> Iterator[int]:
    """Yield a process and all that it has started, directly or not."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from process_tree(int(child))


def proportional_memory(process: int) -> int:
    """Return a process's resident bytes, of those that it shares its share; 0 if it is no more."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def batches(source: Path, split: str) -> Iterator[Arrays]:
    """Yield features (N, F) and labels (N,) of a split, a row group at a time."""
    file = pq.ParquetFile(source)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        table = table.filter(pc.equal(table["split"], split)).drop_columns(["split"])
        x_NF = np.stack([table[name].to_numpy() for name in table.column_names if name != "label"], axis=1)
        yield x_NF, table["label"].to_numpy()


def whole(source: Path, split: str) -> Arrays:
    """Return all features and labels of a split."""
    found = list(batches(source, split))
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


def by_lightgbm(source: Path) -> float:
    """Fit LightGBM's defaults with early stopping, all rows in memory; return AP on the test split."""
    lightgbm: Any = importlib.import_module("lightgbm")
    from sklearn.metrics import average_precision_score

    train, valid = (lightgbm.Dataset(*whole(source, split), free_raw_data=True) for split in ("train", "valid"))
    settings = {"objective": "binary", "metric": "average_precision", "verbose": -1}
    stopping = lightgbm.early_stopping(PATIENCE, verbose=False)
    model = lightgbm.train(settings, train, ROUNDS, valid_sets=[valid.set_reference(train)], callbacks=[stopping])
    x_NF, label_N = whole(source, "test")
    return float(average_precision_score(label_N, model.predict(x_NF)))


def by_xgboost(source: Path) -> float:
    """Fit XGBoost's defaults with early stopping from its external memory; return AP on the test split."""
    xgboost: Any = importlib.import_module("xgboost")
    from sklearn.metrics import average_precision_score

    class Rows(xgboost.DataIter):  # type: ignore[misc]
        def __init__(self, split: str, cache: str) -> None:
            self.split, self.pending = split, batches(source, split)
            super().__init__(cache_prefix=cache)

        def next(self, input_data: Callable[..., None]) -> bool:
            found = next(self.pending, None)
            if found is not None:
                input_data(data=found[0], label=found[1])
            return found is not None

        def reset(self) -> None:
            self.pending = batches(source, self.split)

    with tempfile.TemporaryDirectory(dir=source.parent) as cache:
        train = xgboost.ExtMemQuantileDMatrix(Rows("train", f"{cache}/train"))
        valid = xgboost.ExtMemQuantileDMatrix(Rows("valid", f"{cache}/valid"), ref=train)
        settings = {"objective": "binary:logistic", "eval_metric": "aucpr", "tree_method": "hist"}
        model = xgboost.train(
            settings, train, ROUNDS, [(valid, "valid")], early_stopping_rounds=PATIENCE, verbose_eval=False
        )
        x_NF, label_N = whole(source, "test")
        return float(average_precision_score(label_N, model.inplace_predict(x_NF)))


OTHERS: dict[str, Callable[[Path], float]] = {"lightgbm": by_lightgbm, "xgboost": by_xgboost}
OTHER_NAMES = {"lightgbm": "LightGBM, in memory", "xgboost": "XGBoost, external memory"}


def markdown(rows: list[int], sizes: list[dict[str, Result]], estimate: int) -> str:
    """Return a table of both sizes, and of CPU seconds and seconds that follow for ``estimate`` rows."""
    head = [f"{size:,} rows: CPU s | s | MB | AP" for size in rows]
    lines = [
        f"| stage | {' | '.join(head)} | {estimate:,} rows, extrapolated: CPU s | s |",
        f"|---|{'---:|' * 10}",
    ]
    for stage, small in sizes[0].items():
        if stage not in sizes[1]:
            continue
        cells = [stage]
        for result in (small, sizes[1][stage]):
            ap = f"{result['average_precision']:.4f}" if "average_precision" in result else ""
            cells += [
                f"{result['cpu_seconds']:,.0f}",
                f"{result['seconds']:,.0f}",
                f"{result['peak_bytes'] / 1e6:,.0f}",
                ap,
            ]
        for key in ("cpu_seconds", "seconds"):
            per_row = (sizes[1][stage][key] - small[key]) / (rows[1] - rows[0])
            cells.append(f"{sizes[1][stage][key] + per_row * (estimate - rows[1]):,.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
