"""``dkan register``: a model as a version in a Kubeflow Model Registry."""

from typing import Annotated

import typer

import dkan_core
from dkan_core.cli.app import app
from dkan_core.cli.options import JsonFile, OverwriteJson, check_models, command, option
from dkan_core.cli.results import result_printer

PANEL = "Deployment"


@command(
    app,
    panel=PANEL,
    examples=[
        "dkan register s3://bucket/models/late --registry http://registry.example:8080",
        "dkan register s3://bucket/models/late --registry http://registry.example:8080 --name late --version 2026-11",
    ],
)
def register(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or URI from which others fetch the model.")],
    registry: Annotated[str, option("--registry", help="Address of a Kubeflow Model Registry.")],
    name: Annotated[
        str | None, option("--name", help="Name of the registered model. Default: the last part of MODEL.")
    ] = None,
    version: Annotated[
        str | None,
        option("--version", help="Name of the version. Default: from the fingerprints of data and model."),
    ] = None,
    metrics: Annotated[
        str | None, option("--metrics", help="metrics.json from `dkan evaluate`, to register as well. Default: none.")
    ] = None,
    overwrite: OverwriteJson = False,
    json_file: JsonFile = None,
) -> None:
    """Register a published model in a Kubeflow Model Registry; repeating the command has no further effect."""
    check_models(model)
    with result_printer(json_file, overwrite=overwrite) as show:
        found = dkan_core.register(model, registry, name=name or "", version=version or "", metrics=metrics)
        show(found.to_dict(), found)
