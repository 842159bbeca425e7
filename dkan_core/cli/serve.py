"""``dkan serve``: a model behind HTTP."""

from typing import Any

import dkan_core
from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import ConfigFile, Model, check_models, command, merged_settings


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
    check_models(model)
    dkan_core.serve(model, merged_settings(dkan_core.ServeConfig, config, settings))
