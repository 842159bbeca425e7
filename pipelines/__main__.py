"""Compile the pipelines, check them, run them on this machine or on a cluster."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from components.image import IMAGE
from dkan_core.cli.usage_errors import Command, Commands
from dkan_core.data.source.files import split_sources
from dkan_core.forms.uris import fill_dates
from dkan_core.utils.file_names import METRICS
from dkan_core.utils.messages import counted
from pipelines.arguments import (
    ArgumentError,
    GivenParameters,
    PipelineName,
    is_form,
    package_named,
    read_parameters,
    with_defaults,
)
from pipelines.compiled import DEFAULT, PIPELINES, compile_pipeline, inputs_of, is_current, package_of
from pipelines.form_checks import RULES
from pipelines.lint import lint
from pipelines.local import PipelineFailedError, find_docker_fault, run_locally
from pipelines.readmes import write_tables
from pipelines.signatures import write_signatures
from pipelines.step_log import watched_output
from pipelines.submission.submit import EXIT_CODES, submit_command
from pipelines.versions import LATEST, VERSIONS, VersionError, read_version

KFP_HELP = f"Version of the Kubeflow Pipelines server: {', '.join(VERSIONS)}."

app = typer.Typer(
    cls=Commands,
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("compile", cls=Command)
def compile_command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
    kfp: Annotated[str, typer.Option(metavar="VERSION", help=KFP_HELP)] = LATEST,
    out: Annotated[Path | None, typer.Option(help="Folder for the files. Default: that of each pipeline.")] = None,
) -> None:
    """Compile every pipeline to its pipeline.yaml, or to NAME.yaml in another folder."""
    if not RULES["image"].holds(IMAGE):
        _fail(f"DKAN_IMAGE must be {RULES['image'].expected}, got {IMAGE!r}", code=2)
    try:
        version = read_version(kfp)
        for name in PIPELINES:
            path = out / f"{name}.yaml" if out else package_of(name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                compile_pipeline(name, path, version)
                typer.echo(f"wrote {path}")
            elif not is_current(name, path, version):
                _fail(f"{path} is out of date; run: {_compile_command(version, out)}", code=1)
    except VersionError as error:
        _fail(str(error), code=2)
    except OSError as error:
        _fail(f"{error.filename}: cannot be written ({error.strerror})", code=2)


def _compile_command(version: str, out: Path | None) -> str:
    options = [*(["--kfp", version] if version != LATEST else []), *(["--out", str(out)] if out else [])]
    return shlex.join(["python", "-m", "pipelines", "compile", *options])


@app.command("run", cls=Command)
def run_command(
    param: GivenParameters = None,
    out: Annotated[Path, typer.Option(help="Folder to write the artifacts to.")] = Path("local_outputs"),
    pipeline: PipelineName = DEFAULT,
    image: Annotated[str, typer.Option(help="Image to run each step in as a container. Default: no containers.")] = "",
    log: Annotated[Path | None, typer.Option(help="File for the log of the steps. Default: it is shown.")] = None,
) -> None:
    """Run a compiled pipeline on this machine, without a cluster."""
    try:
        package = package_named(pipeline)
        inputs = inputs_of(package)
        if not is_form(inputs):
            # Results are shown by the names of outputs that it need not have.
            raise ArgumentError(f"{pipeline}: is not built by pipelines.factory; run it with kfp.local")
        arguments = read_parameters(inputs, param or [])
    except ArgumentError as error:
        _fail(str(error), code=2)
    # Here and not by the first step alone, as the end of the run names the places.
    arguments |= fill_dates(arguments)
    if image and (fault := find_docker_fault()):
        _fail(fault, code=2)
    # Quoted, because kfp inserts the interpreter's path into a shell command unquoted.
    sys.executable = shlex.quote(sys.executable)
    try:
        for folder in (out, *([] if log is None else [log.parent])):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(f"{error.filename}: cannot be created ({error.strerror})", code=2)
    if log is not None and log.is_dir():
        _fail(f"{log}: is a folder; expected the name of a file", code=2)
    if log is not None:
        typer.echo(f"running {pipeline}; log in {log}")
    causes: list[str] = []
    try:
        with watched_output(log) as causes:
            result = run_locally(package, arguments, out, image)
    except PipelineFailedError as error:
        cause = f" {causes[-1]}" if causes else ""
        _fail(f"{error} Its log is {f'in {log}' if log else 'above'}.{cause}", code=1)
    _show_result(result, with_defaults(inputs, arguments))


def _show_result(result: dict[str, Any], arguments: dict[str, Any]) -> None:
    if "model" in result:
        typer.echo(f"model:   {result['model'] / 'model'}")
    typer.echo(f"report:  {result['report']}")
    if "approved" in result:
        typer.echo(f"test AP: {result['average_precision']:.4f}{'' if result['approved'] else ', not approved'}")
        typer.echo(_what_next(result, arguments))
        typer.echo(describe_publication(result, arguments))
    else:
        typer.echo(f"rows:    {result['rows']:,}")


def _what_next(result: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Return what to compare the test AP with, where to find the report, and a next command."""
    metrics = json.loads(result["report"].with_name(METRICS).read_text(encoding="utf-8"))
    sources = shlex.join(split_sources(arguments.get("data_uri", "")) or ["NEW.parquet"])
    model = shlex.quote(str(result["model"] / "model"))
    return (
        f"no skill: {metrics['prevalence']:.4f}\n"
        f"open:    {result['report'].as_uri()}\n"
        f"next:    dkan predict {model} {sources} --out scores.parquet"
    )


def describe_publication(result: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Return where the model was published, or why it was not."""
    found, least = result["average_precision"], arguments.get("min_average_precision") or 0.0
    if found < least:
        return f"not published: test AP {found:.4f} is below {least:g}"
    if not result["approved"]:
        return "not published: the earlier model has a higher test AP, or could not be scored on these rows"
    uri = arguments.get("publish_uri")
    return f"published: {uri}" if uri else "not published: publish_uri is empty"


@app.command("lint", cls=Command)
def lint_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Compiled pipelines to check. Default: all committed ones."),
    ] = None,
    kfp: Annotated[str, typer.Option(metavar="VERSION", help=KFP_HELP)] = LATEST,
) -> None:
    """Check compiled pipelines for mistakes that the SDK accepts but a cluster fails on."""
    try:
        version = read_version(kfp)
    except VersionError as error:
        _fail(str(error), code=2)
    checked = files or [package_of(name) for name in PIPELINES]
    if missing := [str(path) for path in checked if not path.is_file()]:
        _fail(f"{missing[0]}: no such file", code=2)
    findings = [finding for path in checked for finding in lint(path, version)]
    for line in findings or [f"{counted(len(checked), 'file')}: no mistakes found"]:
        typer.echo(line)
    raise typer.Exit(1 if findings else 0)


@app.command("signatures", cls=Command)
def signatures_command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a component is out of date.")] = False,
) -> None:
    """Write the settings into the signatures and docstrings of the components."""
    _report(write_signatures(check=check), check=check, command="signatures")


@app.command("readme", cls=Command)
def readme_command(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a README is out of date.")] = False,
) -> None:
    """Write the tables of inputs and outputs in the README of every component and pipeline."""
    _report(write_tables(check=check), check=check, command="readme")


def _report(outdated: list[str], *, check: bool, command: str) -> None:
    """Print the files that were out of date; with ``check`` they are not updated, and the command fails."""
    for path in outdated:
        typer.echo(f"{path} is out of date" if check else f"wrote {path}")
    if check and outdated:
        _fail(f"run: python -m pipelines {command}", code=1)


app.command("submit", cls=Command, epilog=EXIT_CODES.replace("\n", " "))(submit_command)


def _fail(message: str, *, code: int) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
