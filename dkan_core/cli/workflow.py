"""The commands that lead from data to predictions."""

from typing import Annotated, Any, Literal

import typer

import dkan_core
from dkan_core.cli.options import (
    ConfigFile,
    JsonFile,
    Model,
    Out,
    Overwrite,
    Prepared,
    Sources,
    command,
    epilog,
    merged_settings,
    option,
)
from dkan_core.cli.results import fail, result_printer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train FastKAN on huge tabular data.",
    epilog=epilog(
        [
            "dkan prepare flights --out prepared --label label --split-column split",
            "dkan train prepared --out run",
            "dkan evaluate run/model prepared --split test --out eval",
            "dkan predict run/model flights --out scores.parquet --column carrier",
        ]
    ),
)

PANEL = "From data to predictions"


@command(
    app,
    settings="PrepareConfig",
    panel=PANEL,
    examples=[
        "dkan prepare flights --out prepared --label label --split-column split",
        "dkan prepare 's3://bucket/rows/*.parquet' --out prepared --label bought --label returned --group user",
        "dkan prepare new.parquet --out prepared-new --like run/model",
    ],
)
def prepare(
    sources: Sources,
    out: Out,
    overwrite: Overwrite = False,
    workers: Annotated[
        int,
        option(
            "--workers",
            help="Parts of the rows to work on at once; if it is killed, the same command continues. The result is the "
            "same. Default: all rows in one go.",
            group="Output",
        ),
    ] = 0,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Turn Parquet into shuffled, encoded shards and a manifest."""
    merged = merged_settings(dkan_core.PrepareConfig, config, settings)
    dkan_core.prepare(sources, out, merged, overwrite=overwrite, workers=workers)


@command(
    app,
    settings="TrainConfig",
    panel=PANEL,
    examples=[
        "dkan train prepared --out run",
        "dkan train prepared --out run --config train.toml --epochs 20 --resume auto",
        "dkan train prepared --out run --device cuda:0,cuda:1 --precision bf16 --max-seconds 3600",
        "dkan train prepared-new --out run-new --init-from run/model",
    ],
)
def train(
    prepared: Prepared,
    out: Out,
    overwrite: Overwrite = False,
    config: ConfigFile = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model, evaluating it in parallel, and keep the one with the best validation average precision (AP)."""
    from dkan_core.training.launcher.fork_server_start import fork_ahead

    merged = merged_settings(dkan_core.TrainConfig, config, settings)
    try:
        with fork_ahead():
            result = dkan_core.train(prepared, out, merged, overwrite=overwrite)
    except KeyboardInterrupt:
        fail(f"interrupted; the best model so far, if any, is in {out}/model", 130)
    if result.metrics["training"]["ended"] == "interrupt":
        advice = "continue with --resume auto" if result.checkpoint else "no checkpoint; start over with --overwrite"
        fail(f"interrupted; the best model so far is in {out}/model; {advice}", 130)


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan evaluate run/model prepared --split test --out eval",
        "dkan evaluate run/model rows.parquet --label late --out eval --save-predictions",
        "dkan evaluate run-new/model prepared --out eval --previous run/model",
    ],
)
def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="A prepared folder, or raw Parquet.")],
    out: Out,
    split: Annotated[
        str | None,
        option("--split", help="Split of prepared data: train, valid or test. Default: test.", group="Data"),
    ] = None,
    label: Annotated[
        list[str] | None,
        option(
            "--label",
            help="Label column of raw Parquet; may be repeated. Default: the names of the model's labels.",
            group="Data",
        ),
    ] = None,
    previous: Annotated[
        str | None,
        option("--previous", help="Earlier model to evaluate on the same rows. Default: none.", group="Model"),
    ] = None,
    save_predictions: Annotated[
        bool, option("--save-predictions", help="Write predictions.parquet.", group="Output")
    ] = False,
    no_explain: Annotated[
        bool, option("--no-explain", help="Leave out the explanation of what the model learned.", group="Output")
    ] = False,
) -> None:
    """Write metrics.json and report.html for a prepared split, or for raw Parquet with labels."""
    dkan_core.evaluate(
        model,
        data,
        out,
        split=split,
        label=label or (),
        save_predictions=save_predictions,
        explain=not no_explain,
        previous=previous,
    )


@command(app, panel=PANEL, examples=["dkan explain run/model prepared --out learned"])
def explain(
    model: Model,
    prepared: Prepared,
    out: Out,
    split: Annotated[str, option("--split", help="Split to read: train, valid or test.", group="Data")] = "valid",
    top: Annotated[int, option("--top", help="Columns to shuffle and to draw a curve for.", group="Output")] = 12,
    rows: Annotated[int, option("--rows", help="Rows of the split to read.", group="Data")] = 20_000,
    label: Annotated[
        str | None, option("--label", help="Label to explain. Default: the most frequent one.", group="Data")
    ] = None,
    seed: Annotated[int, option("--seed", help="Seed of the shuffles.", group="Data")] = 0,
) -> None:
    """Write what the model learned: importances, curves and interactions, as a page and as figures."""
    dkan_core.explain(model, prepared, out, split=split, top=top, rows=rows, label=label, seed=seed)


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan predict run/model flights --out scores.parquet",
        "dkan predict run/model new.parquet --out scores.parquet --column id --column carrier",
    ],
)
def predict(
    model: Model,
    sources: Sources,
    out: Annotated[str, option("--out", help="Parquet file to write.", group="Output")],
    column: Annotated[
        list[str] | None,
        option("--column", help="Source column to copy to the output; may be repeated. Default: none.", group="Output"),
    ] = None,
    reasons: Annotated[
        int,
        option(
            "--reasons",
            help="How many of the columns that moved a row's score the most to add, with value and log-odds; 0: none.",
            group="Output",
        ),
    ] = 0,
) -> None:
    """Score raw Parquet: one probability per label and row, in the order of the input."""
    dkan_core.predict(model, sources, out, columns=column or (), reasons=reasons)


@command(app, panel=PANEL, examples=["dkan export run/model --out late.onnx"])
def export(
    model: Model,
    out: Annotated[str, option("--out", help="File or fsspec URI to write.", group="Output")],
    format: Annotated[Literal["onnx"], option("--format", help="Format of the file.", group="Output")] = "onnx",
    missing_text: Annotated[
        str,
        option(
            "--missing-text",
            help="What stands for a missing category, as ONNX has no nulls. Default: the empty text.",
            group="Output",
        ),
    ] = "",
) -> None:
    """Write a model as one file that runs without dkan: raw columns in, probabilities out."""
    dkan_core.export(model, out, format=format, missing_text=missing_text)


@command(
    app,
    panel=PANEL,
    examples=["dkan drift run/model new.parquet", "dkan drift run/model new.parquet --max-psi 0.25 --json drift.json"],
)
def drift(
    model: Model,
    sources: Sources,
    max_psi: Annotated[
        float,
        option("--max-psi", help="Exit with code 1 if any population stability index exceeds this; 0 sets no limit."),
    ] = 0.0,
    json_file: JsonFile = None,
) -> None:
    """Measure how far raw Parquet, and the model's scores on it, have drifted from the training data."""
    with result_printer(json_file) as show:
        found = dkan_core.measure_drift(model, sources)
        show(found)
    found.check(max_psi)


@command(
    app,
    settings="ServeConfig",
    panel=PANEL,
    examples=[
        "dkan serve run/model --name late",
        "dkan serve s3://bucket/models/late --name late --port 9000 --grpc-port 9001 --workers 4",
    ],
)
def serve(model: Model, config: ConfigFile = None, *, settings: dict[str, Any]) -> None:
    """Serve a model over HTTP: the Open Inference Protocol, and rows as plain JSON."""
    dkan_core.serve(model, merged_settings(dkan_core.ServeConfig, config, settings))
