"""``dkan export``: a model as ONNX."""

from dataclasses import asdict
from typing import Annotated

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, Model, Overwrite, check_models, command, option
from dkan_core.cli.results import result_printer


@command(app, panel=PANEL, examples=["dkan export run/model --out late.onnx"])
def export(
    model: Model,
    out: Annotated[str, option("--out", help="File or fsspec URI to write.", group="Output")],
    missing_text: Annotated[
        str,
        option(
            "--missing-text",
            help="Text that stands for a missing category, as ONNX has no nulls. Default: the empty string.",
            group="Output",
        ),
    ] = "",
    overwrite: Overwrite = False,
    json_file: JsonFile = None,
) -> None:
    """Write a model as one file that runs without dkan: raw columns in, probabilities out."""
    check_models(model)
    with result_printer(json_file, out=out, overwrite=overwrite) as show:
        show(asdict(dkan_core.export(model, out, missing_text=missing_text, overwrite=overwrite)))
