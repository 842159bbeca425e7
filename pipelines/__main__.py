"""Compile the pipeline, run it on this machine, or on a cluster: ``python -m pipelines compile | run | submit``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pipelines.compiled import PIPELINE_YAML, ArgumentError, compile_pipeline, is_current, parse_arguments
from pipelines.lint import committed_files, lint
from pipelines.local import PipelineFailedError, run_locally
from pipelines.submit import EXIT_CODES, submit_command
from pipelines.tables import write_tables

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command("compile")
def compile_command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when the file is out of date.")] = False,
) -> None:
    """Compile the pipeline to its pipeline.yaml."""
    if not check:
        compile_pipeline(PIPELINE_YAML)
        typer.echo(f"wrote {PIPELINE_YAML}")
    elif not is_current(PIPELINE_YAML):
        _fail(f"{PIPELINE_YAML} is out of date; run: python -m pipelines compile", code=1)


@app.command("run")
def run_command(
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A pipeline parameter.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the artifacts.")] = Path("local_outputs"),
) -> None:
    """Run the compiled pipeline on this machine, without a cluster."""
    try:
        arguments = parse_arguments(PIPELINE_YAML, param or [])
    except ArgumentError as error:
        _fail(str(error), code=2)
    # kfp pastes the interpreter's path into a shell line unquoted.
    sys.executable = shlex.quote(sys.executable)
    try:
        result = run_locally(PIPELINE_YAML, arguments, out)
    except PipelineFailedError as error:
        _fail(f"{error} Its log is above.", code=1)
    typer.echo(f"model:   {result.model / 'model'}")
    typer.echo(f"report:  {result.report}")
    typer.echo(f"test AP: {result.average_precision:.4f}")


@app.command("lint")
def lint_command(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="All committed ones by default.")
    ] = None,
) -> None:
    """Check compiled pipelines for what the SDK compiles and a cluster fails on."""
    findings = [finding for path in files or committed_files() for finding in lint(path)]
    for finding in findings:
        typer.echo(finding)
    raise typer.Exit(1 if findings else 0)


@app.command("readme")
def readme_command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when a README is out of date.")] = False,
) -> None:
    """Write the tables of inputs and outputs in the README of every component and pipeline."""
    outdated = write_tables(check=check)
    for path in outdated:
        typer.echo(f"{path} is out of date" if check else f"wrote {path}")
    if check and outdated:
        _fail("run: python -m pipelines readme", code=1)


app.command("submit", epilog=EXIT_CODES.replace("\n", " "))(submit_command)


def _fail(message: str, *, code: int) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
