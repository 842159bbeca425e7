"""The options that ``run`` and ``submit`` share: which pipeline, and its parameters."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.compiled import PIPELINES, package_of
from pipelines.parameters import ArgumentError

KNOWN = ", ".join(PIPELINES)

PipelineName = Annotated[str, typer.Option(help=f"Pipeline to run: {KNOWN}.")]
GivenParameters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|NAME=VALUE",
        help="Parameters: a TOML, JSON or YAML file, or NAME=VALUE, which overrides files; may be repeated.",
    ),
]


def package_named(pipeline: str) -> Path:
    """Return the compiled file of the pipeline that a user named.

    Raises:
        ArgumentError: There is no such pipeline.
    """
    if pipeline not in PIPELINES:
        raise ArgumentError(f"unknown pipeline {pipeline!r}; expected one of {KNOWN}")
    return package_of(pipeline)
