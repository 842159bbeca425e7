"""``dkan demo``: the whole workflow on bundled data, in less than a minute."""

import functools
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Overwrite, command, option
from dkan_core.cli.results import STDOUT, result_printer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dkan_core.data.format.manifest import PreparedData

# The folder of each step under that of the demo.
ROWS, PREPARED, RUN, EVAL, LEARNED = "tumours.parquet", "prepared", "run", "eval", "learned"
STRONGEST = 3


@command(app, panel=PANEL, examples=["dkan demo", "dkan demo --out try"])
def demo(
    out: Annotated[str, option("--out", help="Folder of the results.", group="Output")] = "dkan-demo",
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Prepare, train and evaluate on a small built-in data set; takes less than a minute."""
    from dkan_core.utils.storage.outputs import check_free

    folder = Path(out)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        check_free(folder, ours=(ROWS, PREPARED, RUN, EVAL, LEARNED), overwrite=overwrite)
        say = functools.partial(typer.echo, err=json_file == STDOUT)
        found = _whole_way(folder, say, overwrite=overwrite)
        show(found, _result(found))


def _whole_way(folder: Path, say: Callable[[str], None], *, overwrite: bool) -> dict[str, Any]:
    """Prepare, train, evaluate and explain, announcing each step; return the demo's result."""
    from dkan_core.data.example_data import LABEL
    from dkan_core.data.format.manifest import read_manifest
    from dkan_core.training.launcher.fork_server_start import fork_ahead

    # Quiet, as the lines below say what happens; --verbose shows the log of each step as well.
    package = logging.getLogger("dkan_core")
    if package.level == logging.INFO:
        package.setLevel(logging.WARNING)
    with fork_ahead():
        dkan_core.write_sample(folder / ROWS)
        say("1/4  569 tumours from the Breast Cancer Wisconsin data (UCI 17), 30 measurements each")
        config = dkan_core.PrepareConfig(label=(LABEL,))
        dkan_core.prepare(folder / ROWS, folder / PREPARED, config, overwrite=overwrite)
        manifest = read_manifest(folder / PREPARED)
        rows = ", ".join(f"{name} {split.rows}" for name, split in manifest.splits.items())
        say(f"2/4  prepared: {rows}; split at random, as each row is a different patient")
        settings = dkan_core.TrainConfig(device="cpu", strategy="single")
        trained = dkan_core.train(folder / PREPARED, folder / RUN, settings, overwrite=overwrite)
        last = trained.history[-1]
        say(f"3/4  trained: {last['epoch']:.0f} epochs in {last['seconds']:.1f} s on one core")
    prepared, model = folder / PREPARED, trained.model
    metrics = dkan_core.evaluate(model, prepared, folder / EVAL, explain=False, overwrite=overwrite).metrics
    learned = dkan_core.explain(model, prepared, folder / LEARNED, split="test", top=STRONGEST, overwrite=overwrite)
    say(f"4/4  evaluated on {metrics['rows']} held-out test rows\n")
    return {
        "average_precision": metrics["average_precision"],
        "average_precision_interval": metrics["average_precision_interval"],
        "no_skill": metrics["prevalence"],
        "logistic_regression": logistic_regression(prepared, manifest),
        "strongest_columns": [importance.name for importance in learned.importance[:STRONGEST]],
        "report": (folder / EVAL / "report.html").resolve().as_uri(),
        "explanation": (folder / LEARNED / "explanation.html").resolve().as_uri(),
        "folder": str(folder),
    }


def logistic_regression(folder: Path, manifest: "PreparedData") -> float:
    """Return the average precision on test of a logistic regression that is fitted on the same encoded train rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from dkan_core.evaluation.metrics import average_precision

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(*_read(folder, manifest, "train"))
    inputs, labels = _read(folder, manifest, "test")
    return average_precision(labels, model.predict_proba(inputs)[:, 1])


def _read(
    folder: Path, manifest: "PreparedData", split: str
) -> tuple["npt.NDArray[np.float64]", "npt.NDArray[np.uint8]"]:
    """Return normal scores and the label of each row of a split."""
    import numpy as np

    from dkan_core.data.loading.loader import all_batches, open_split

    with open_split(folder, manifest, split) as reader:
        parts = list(all_batches(reader, 1 << 14))
    inputs = np.concatenate([part["numeric"] for part in parts]).astype(np.float64)
    return inputs, np.concatenate([part["labels"] for part in parts])[:, 0]


def _result(found: dict[str, Any]) -> str:
    """Return the figures, the location of the report, and what to do next."""
    interval = found["average_precision_interval"]
    bounds = f"  (95%: {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    folder = Path(found["folder"])
    rows = [
        ("average precision", f"{found['average_precision']:.4f}{bounds}"),
        ("  no skill", f"{found['no_skill']:.4f}  (the base rate: share of malignant rows)"),
        ("  logistic regression", f"{found['logistic_regression']:.4f}  (same rows and encoding)"),
        ("strongest columns", ", ".join(found["strongest_columns"])),
        ("report", found["report"]),
        ("what it learned", found["explanation"]),
    ]
    steps = [
        shlex.join(["dkan", "predict", f"{folder / RUN}/model", str(folder / ROWS), "--out", "scores.parquet"]),
        "dkan prepare YOUR.parquet --out prepared --label COLUMN    # names the candidates without --label",
        "dkan train prepared --out run && dkan evaluate run/model prepared --out eval",
    ]
    table = "\n".join(f"{name:<22} {value}" for name, value in rows)
    return f"{table}\n\nnext:\n" + "\n".join(f"  {step}" for step in steps)
