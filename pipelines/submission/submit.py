"""Run a pipeline on a Kubeflow server and wait for it: ``python -m pipelines submit``."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dkan_core.errors import UserError
from dkan_core.forms.uris import find_unshared_uri
from pipelines.arguments import (
    ArgumentError,
    GivenParameters,
    PipelineName,
    is_form,
    package_named,
    read_parameters,
    with_defaults,
)
from pipelines.compiled import DEFAULT
from pipelines.form_checks import OPTIONAL_NAME_RULE
from pipelines.lint.documents import read_documents
from pipelines.pods import VOLUME_PATH
from pipelines.submission.credentials import Credentials, RefusedError, service_account_token
from pipelines.submission.results import Submission, write_junit, write_summary
from pipelines.submission.server import ADDRESS, Pace, PipelinesServer, UnreachableError, is_address
from pipelines.submission.watch import RunOutcome, Watched, watch

PACE = Pace()

EXIT_CODES = """Exit codes: 0 succeeded (or, without --wait, submitted); 1 the run failed; 2 refused: bad options or
parameters, or the server rejected the request (400, 401, 403, 404); 3 the run was cancelled; 4 still running after
--timeout; 5 the server could not be reached. After 4 and 5, a run that was started continues."""


@dataclass(kw_only=True)
class Request:
    """A checked request; nothing was sent yet."""

    package: Path
    spec: dict[str, Any]
    parameters: dict[str, Any]
    submission: Submission

    @property
    def name(self) -> str:
        """Name of the pipeline in Kubeflow."""
        return str(self.spec["pipelineInfo"]["name"])


def submit_command(
    host: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Address of the Kubeflow Pipelines server, such as https://NAME/pipeline. Required."
        ),
    ] = "",
    experiment: Annotated[str, typer.Option(help="Experiment to run in; created if it does not exist. Required.")] = "",
    params: GivenParameters = None,
    pipeline: PipelineName = DEFAULT,
    version_name: Annotated[
        str, typer.Option(help="Version to upload the pipeline as, or to reuse. Default: the file's hash.")
    ] = "",
    run_name: Annotated[str, typer.Option(help="Name of the run. Default: pipeline, version and time.")] = "",
    run_as: Annotated[
        str, typer.Option(metavar="NAME", help="Service account of the steps. Default: that of the server's runs.")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace, on a server with several users. Default: the pod's, if any.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token; read again for each request.")
    ] = None,
    service_account: Annotated[
        bool, typer.Option("--service-account", help="Authenticate with the service account token of this pod.")
    ] = False,
    cookies_file: Annotated[Path | None, typer.Option(help="File with the content of a Cookie header.")] = None,
    ca: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="PEM file of certificates to trust.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the parameters, and print what would be submitted; send nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run ends.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Maximum seconds to wait; the run continues. Default: no limit.")
    ] = None,
    summary: Annotated[Path | None, typer.Option(help="JSON file to write the outcome to.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML file to write, with one test case per task.")] = None,
) -> None:
    """Run a pipeline on a Kubeflow server."""
    credentials = None
    submission = Submission(
        pipeline=pipeline, version=version_name, experiment=experiment, run_name=run_name, service_account=run_as
    )
    logins = sum(map(bool, (token_file, service_account, cookies_file)))
    # Not left to the command line, which would report one missing option at a time.
    faults = {
        f"--host must be {ADDRESS}": not is_address(host),
        f"--experiment must be a name, got {experiment!r}": not experiment.strip(),
        f"--run-as must be {OPTIONAL_NAME_RULE.expected}, got {run_as!r}": not OPTIONAL_NAME_RULE.holds(run_as),
        "--timeout and --junit need --wait": not wait and (timeout is not None or junit),
        "give one of --token-file, --service-account and --cookies-file": logins > 1,
    }
    try:
        request = prepare(submission, params or [], [fault for fault, is_there in faults.items() if is_there])
        if dry_run:
            _show(request)
            return
        token = service_account_token() if service_account else token_file
        credentials = Credentials(token_file=token, cookies_file=cookies_file)
        server = PipelinesServer(host, credentials, PACE, namespace=namespace, ca=ca)
        watched = submit(request, server, timeout, typer.echo, wait=wait)
    except (RefusedError, UnreachableError) as error:
        outcome = RunOutcome.UNREACHABLE if isinstance(error, UnreachableError) else RunOutcome.REFUSED
        watched = Watched(outcome=outcome, message=credentials.clean(str(error)) if credentials else str(error))
    _finish(submission, watched, summary, junit)


def prepare(submission: Submission, params: Sequence[str], faults: Sequence[str]) -> Request:
    """Make all checks that need no server, and choose the names that were not given.

    Args:
        submission: Names the pipeline.
        params: Its parameters, as given.
        faults: Those of the other options, to be reported together with those of the parameters.

    Raises:
        RefusedError: There are faults, no such pipeline, or parameters that do not fit it; with a line for each.
    """
    try:
        package = package_named(submission.pipeline)
        spec = read_documents(package)[0]
        parameters = _read_shared_parameters(spec, params)
    except ArgumentError as error:
        raise RefusedError("\n".join([*faults, str(error)])) from None
    if faults:
        raise RefusedError("\n".join(faults))
    # A hash of the file, so that submitting the same file again uploads nothing.
    submission.version = submission.version or hashlib.sha256(package.read_bytes()).hexdigest()[:12]
    stamp = time.strftime("%Y-%m-%d %H-%M-%S")
    submission.run_name = submission.run_name or f"{Path(submission.pipeline).stem} {submission.version[:12]} {stamp}"
    return Request(package=package, spec=spec, parameters=parameters, submission=submission)


def _read_shared_parameters(spec: dict[str, Any], params: Sequence[str]) -> dict[str, Any]:
    """Return the parameters for a pipeline all of whose pods can reach what they name."""
    inputs = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    parameters = read_parameters(inputs, params)
    form = with_defaults(inputs, parameters) if is_form(inputs) else {}
    if fault := find_unshared_uri(form, VOLUME_PATH if "pvc_name" in inputs else ""):
        raise ArgumentError(fault)
    return parameters


def _show(request: Request) -> None:
    """Print what would be submitted."""
    typer.echo(f"pipeline {request.name}, version {request.submission.version}")
    typer.echo(json.dumps(request.parameters, indent=2))


def submit(
    request: Request, server: PipelinesServer, timeout: float | None, say: Callable[[str], None], *, wait: bool
) -> Watched | None:
    """Start the run, and follow it to its end if ``wait``; store its id and address in the submission."""
    submission = request.submission
    pipeline, version = server.ensure_version(request.package, request.name, submission.version)
    say(f"pipeline {request.name}, version {submission.version}")
    experiment = server.ensure_experiment(submission.experiment)
    submission.run_id, submission.url = server.create_run(
        submission.run_name, experiment, pipeline, version, request.parameters, submission.service_account
    )
    say(f"run: {submission.url}")
    return watch(server, submission.run_id, request.spec["root"]["dag"]["tasks"], timeout, say) if wait else None


def _finish(submission: Submission, watched: Watched | None, summary: Path | None, junit: Path | None) -> None:
    """Write the files, show failures, and exit with the code of the outcome."""
    try:
        if summary:
            write_summary(summary, submission, watched)
        if junit and watched:
            write_junit(junit, submission, watched)
    except UserError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        if watched is None or watched.outcome is RunOutcome.SUCCEEDED:
            raise typer.Exit(RunOutcome.REFUSED.value) from None
    if watched is None:
        return
    for task in watched.tasks:
        if task.state == "FAILED":
            typer.secho(f"{task.name} failed: {task.error or 'its log is in the run'}", fg=typer.colors.RED, err=True)
    word = watched.outcome.name.lower()
    if watched.outcome is RunOutcome.SUCCEEDED:
        typer.echo(word)
        return
    typer.secho(f"error: {word}{': ' * bool(watched.message)}{watched.message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(watched.outcome.value)
