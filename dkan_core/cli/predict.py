"""``dkan predict``: scores of raw Parquet."""

from typing import Annotated

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Model, Overwrite, Sources, check_models, command, option
from dkan_core.cli.results import result_printer


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
    out: Annotated[str, option("--out", help="File to write: .parquet, or .csv.", group="Output")],
    column: Annotated[
        list[str] | None,
        option("--column", help="Source column to copy to the output; may be repeated. Default: none.", group="Output"),
    ] = None,
    reasons: Annotated[
        int,
        option(
            "--reasons",
            help="Number of columns to report per row, the strongest first, with value and log-odds; 0: none.",
            group="Output",
        ),
    ] = 0,
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Score raw Parquet: one probability per label and row, in the order of the input."""
    check_models(model, sources=sources)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        rows = dkan_core.predict(model, sources, out, columns=column or (), reasons=reasons, overwrite=overwrite)
        show({"scores": out, "rows": rows})
