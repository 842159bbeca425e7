"""``dkan explain``: what a model learned, or the reasons for scores."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Model, Out, Overwrite, check_models, command, option
from dkan_core.cli.results import result_printer
from dkan_core.errors import ConfigError


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan explain run/model prepared --out learned",
        "dkan explain run/model --rows new.parquet --out why",
    ],
)
def explain(
    model: Model,
    out: Out,
    prepared: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="Folder or URI that `dkan prepare` wrote; not with Parquet in --rows."),
    ] = None,
    split: Annotated[str, option("--split", help="Split to read: train, valid or test.", group="Data")] = "valid",
    top: Annotated[
        int, option("--top", help="Columns to shuffle and draw curves for, or to draw per row.", group="Output")
    ] = 12,
    rows: Annotated[
        str,
        option(
            "--rows",
            help="How many rows of the split to read; or raw Parquet, to show for each of its rows which columns moved "
            "the score.",
            group="Data",
        ),
    ] = "20000",
    label: Annotated[
        str | None,
        option("--label", help="Label to explain. Default: all; for raw rows, the most frequent.", group="Data"),
    ] = None,
    seed: Annotated[int, option("--seed", help="Seed of the shuffles.", group="Data")] = 0,
    against: Annotated[
        str | None,
        option(
            "--against", help="Earlier model to compare with: curves, importances, rows. Default: none.", group="Model"
        ),
    ] = None,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write what the model learned, as a page and as figures; or, with raw rows, the reasons for each score."""
    check_models(model, against, sources=[prepared or rows])
    count = int(rows) if rows.removeprefix("-").isdecimal() else None
    shared: dict[str, Any] = {"label": label, "top": top, "overwrite": overwrite}
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        if count is None:
            if prepared is not None:
                raise ConfigError(
                    f"rows: {rows} is explained without prepared data; leave out {prepared}, or give a number of its "
                    "rows"
                )
            if against is not None:
                raise ConfigError("against: compares models on prepared data; leave it out with raw Parquet in --rows")
            if split != "valid":
                raise ConfigError(f"split: raw Parquet has none; leave out {split}, or give a number of rows in --rows")
            show({"rows": [asdict(row) for row in dkan_core.explain_rows(model, rows, out, **shared)]})
        elif prepared is None:
            raise ConfigError("DIR is missing: give what `dkan prepare` wrote, or raw Parquet with --rows")
        else:
            found = dkan_core.explain(
                model, prepared, out, split=split, rows=count, seed=seed, against=against, **shared
            )
            show(found.to_dict())
