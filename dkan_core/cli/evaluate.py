"""``dkan evaluate``: metrics and the report."""

from typing import Annotated

import typer

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Model, Out, Overwrite, check_models, command, option
from dkan_core.cli.results import result_printer


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
    slice: Annotated[
        list[str] | None,
        option(
            "--slice",
            help="Column to report metrics by; may be repeated. Default: the most important columns.",
            group="Output",
        ),
    ] = None,
    save_predictions: Annotated[
        bool, option("--save-predictions", help="Write predictions.parquet.", group="Output")
    ] = False,
    no_explain: Annotated[
        bool, option("--no-explain", help="Leave out the explanation of what the model learned.", group="Output")
    ] = False,
    worst_errors: Annotated[
        int,
        option(
            "--worst-errors",
            help="Rows to show in the report, with their values and the reasons for their score; 0 for none.",
            group="Output",
        ),
    ] = 10,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write metrics.json and report.html for a prepared split, or for raw Parquet with labels."""
    check_models(model, previous, sources=data)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        found = dkan_core.evaluate(
            model,
            data,
            out,
            split=split,
            label=label or (),
            save_predictions=save_predictions,
            explain=not no_explain,
            previous=previous,
            slices=slice or (),
            worst_errors=worst_errors,
            overwrite=overwrite,
        )
        show(found.metrics)
