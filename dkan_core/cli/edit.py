"""``dkan edit``: changes a model by hand."""

from dataclasses import asdict
from typing import Annotated

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Model, Overwrite, check_models, command, option
from dkan_core.cli.results import result_printer


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan edit run/model --set edits.toml --out edited",
        "dkan edit run/model --set edits.toml --out edited --data prepared --split test",
    ],
)
def edit(
    model: Model,
    edits: Annotated[
        str, option("--set", help="TOML file of edits, one table per edit: term, action and the action's arguments.")
    ],
    out: Annotated[str, option("--out", help="Folder or fsspec URI of the new model.", group="Output")],
    data: Annotated[
        str | None,
        option("--data", help="Prepared folder or URI to measure quality on, before and after. Default: none."),
    ] = None,
    split: Annotated[str, option("--split", help="Split of that data: train, valid or test.")] = "valid",
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Change terms of an additive model: make one monotone, clip, flatten, set, scale, center or remove it."""
    check_models(model)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        result = dkan_core.edit(model, edits, out, data=data, split=split, overwrite=overwrite)
        show(asdict(result), result)
