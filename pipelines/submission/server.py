"""A Kubeflow Pipelines server, over the kfp SDK: with retries, idempotent by name, and without secrets in output."""

import json
import logging
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import kfp
import kfp_server_api
import urllib3

from dkan_core.utils.retry import RetryPolicy, call_with_retries
from pipelines.submission.credentials import Credentials, RefusedError

T = TypeVar("T")

# Time-outs in seconds for the connection and for an answer; the SDK has none.
REQUEST_TIMEOUT = (10, 60)

# Temporary client errors; 409: another job is uploading the same version.
PASSING = {408, 409, 425, 429}

FAILURES = (kfp_server_api.OpenApiException, urllib3.exceptions.HTTPError, OSError)

# Growth of the pause between requests: a busy server gets time, and its answer is still seen within seconds.
GROWTH = 1.5

ADDRESS = "https://NAME[/PATH] or http://NAME[/PATH], without user, password and query"


class UnreachableError(Exception):
    """The server could not be reached, or gave no valid answer, until the patience ended."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Times to wait, in seconds."""

    first: float = 2.0
    """Pause before the second request; each further pause is half as long again."""

    slowest: float = 30.0
    """Longest pause between requests."""

    patience: float = 300.0
    """Patience for an answer while a run is watched."""

    setup_patience: float = 60.0
    """Patience for an answer before there is a run."""

    def next(self, delay: float) -> float:
        """Return the delay that follows ``delay``."""
        return min(delay * GROWTH, self.slowest)


class _Client(kfp.Client):  # type: ignore[misc]
    """The SDK's client, with one attempt instead of five, and without access to the home folder."""

    def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:  # noqa: ARG002
        return self.healthzs.healthz_service_get_healthz(_request_timeout=REQUEST_TIMEOUT)

    def set_user_namespace(self, namespace: str) -> None:
        self._context_setting["namespace"] = namespace


class PipelinesServer:
    """One server, as one user."""

    def __init__(self, host: str, credentials: Credentials, pace: Pace, *, namespace: str = "", ca: Path | None = None):
        """Connect.

        Raises:
            RefusedError: The server does not accept these credentials.
            UnreachableError: Nothing answers there.
        """
        # To extend and to print.
        self.host = host.rstrip("/")
        if ca:
            _check_certificates(ca)
        self.credentials = credentials
        self.pace = pace
        cookies = credentials.cookies
        # Hides a warning for each attempt; the error at the end says what happened.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

        def connect() -> _Client:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return _Client(
                    host=self.host,
                    namespace=namespace or "kubeflow",  # the SDK's default if none is given
                    cookies=cookies,
                    ssl_ca_cert=str(ca) if ca else None,
                    credentials=credentials if credentials.token_file else None,
                )

        self._client: Any = self.patiently(connect, pace.setup_patience)
        self.namespace: str | None = namespace or self._client.get_user_namespace() or None

    def ensure_version(self, package: Path, pipeline: str, version: str) -> tuple[str, str]:
        """Return the ids of a pipeline and its version, found by name, and upload what is missing."""
        return self.patiently(lambda: self._ensure_version(package, pipeline, version), self.pace.setup_patience)

    def ensure_experiment(self, name: str) -> str:
        """Return the id of an experiment, found by name, and create it if it is missing."""
        return self.patiently(lambda: self._ensure_experiment(name), self.pace.setup_patience)

    def create_run(
        self, name: str, experiment: str, pipeline: str, version: str, parameters: dict[str, Any], account: str = ""
    ) -> tuple[str, str]:
        """Start a run of a pipeline's version; return its id and its address.

        Not retried, because a run may have started although its answer was lost.

        Args:
            name: Of the run.
            experiment: Id of the experiment.
            pipeline: Id of the pipeline.
            version: Id of its version.
            parameters: The values of its form.
            account: Service account of the steps. Empty: the server chooses.
        """
        reference = kfp_server_api.V2beta1PipelineVersionReference(pipeline_id=pipeline, pipeline_version_id=version)
        run = kfp_server_api.V2beta1Run(
            display_name=name,
            experiment_id=experiment,
            pipeline_version_reference=reference,
            runtime_config=kfp_server_api.V2beta1RuntimeConfig(parameters=parameters),
            service_account=account or None,
        )
        try:
            created = self.patiently(lambda: self._call(self._client.runs.run_service_create_run, run=run), 0)
        except UnreachableError as error:
            raise UnreachableError(f"{error}; check in experiment {experiment} whether run {name!r} started") from None
        run_id = _identified(created.run_id)
        return run_id, f"{self.host}/#/runs/details/{run_id}"

    def get_run(self, run_id: str, patience: float) -> Any:
        """Return the current state of a run."""

        def get() -> Any:
            run = self._call(self._client.runs.run_service_get_run, run_id=run_id)
            _identified(run.run_id)
            return run

        return self.patiently(get, patience)

    def patiently(self, action: Callable[[], T], patience: float) -> T:
        """Repeat ``action`` until the server answers.

        Raises:
            RefusedError: It answers, and says no.
            UnreachableError: It did not answer for ``patience`` seconds.
        """
        policy = RetryPolicy(
            first_pause=self.pace.first, growth=GROWTH, longest_pause=self.pace.slowest, patience=patience
        )
        try:
            return call_with_retries(action, policy, _may_pass, name=f"waiting for {self.host}")
        except FAILURES as error:
            raise (RefusedError if _is_refusal(error) else UnreachableError)(self._describe(error)) from None

    def _ensure_version(self, package: Path, pipeline: str, version: str) -> tuple[str, str]:
        pipelines, uploads = self._client.pipelines, self._client.pipeline_uploads
        scope = {"namespace": self.namespace} if self.namespace else {}
        found = self._call(pipelines.pipeline_service_list_pipelines, filter=_named(pipeline), **scope).pipelines
        pipeline_id = _id_by_name(found, pipeline, "pipeline_id")
        if pipeline_id is None:
            created = self._call(uploads.upload_pipeline, uploadfile=str(package), name=pipeline, **scope)
            pipeline_id = _identified(created.pipeline_id)
        versions = self._call(
            pipelines.pipeline_service_list_pipeline_versions, pipeline_id=pipeline_id, filter=_named(version)
        ).pipeline_versions
        version_id = _id_by_name(versions, version, "pipeline_version_id")
        if version_id is None:
            created = self._call(
                uploads.upload_pipeline_version, uploadfile=str(package), name=version, pipelineid=pipeline_id
            )
            version_id = _identified(created.pipeline_version_id)
        return pipeline_id, version_id

    def _ensure_experiment(self, name: str) -> str:
        experiments = self._client.experiments
        scope = {"namespace": self.namespace} if self.namespace else {}
        listed = self._call(experiments.experiment_service_list_experiments, filter=_named(name), **scope)
        found = _id_by_name(listed.experiments, name, "experiment_id")
        if found is None:
            experiment = kfp_server_api.V2beta1Experiment(display_name=name, namespace=self.namespace)
            created = self._call(experiments.experiment_service_create_experiment, experiment=experiment)
            found = _identified(created.experiment_id)
        return found

    @staticmethod
    def _call(method: Callable[..., Any], **arguments: Any) -> Any:
        return method(**arguments, _request_timeout=REQUEST_TIMEOUT)

    def _describe(self, error: Exception) -> str:
        """Return in one line what happened."""
        if not isinstance(error, kfp_server_api.ApiException) or not error.status:
            reason = getattr(error, "reason", None) or error
            return self.credentials.clean(f"{self.host}: {type(error).__name__}: {reason}")
        # The SDK's own text of the error is not used, as it has the answer's headers, which may set cookies.
        text = f"{self.host} answers {error.status} {error.reason or ''}".rstrip()
        try:
            body = json.loads(error.body)
            text += f": {body.get('message') or body['error']}"
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        return self.credentials.clean(text)


def is_address(host: str) -> bool:
    """Return whether a text is what ``ADDRESS`` says."""
    try:
        parts = urlsplit(host)
    except ValueError:
        return False
    return bool(parts.scheme in ("http", "https") and parts.hostname and "@" not in host and not parts.query)


def _check_certificates(path: Path) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except OSError:
        raise RefusedError(f"{path}: expected certificates as PEM") from None


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server answered with a refusal."""
    status: int = getattr(error, "status", None) or 0
    return 0 < status < 500 and status not in PASSING


def _may_pass(error: BaseException) -> bool:
    """Return whether an error may be temporary: no refusal, and not about certificates."""
    reason = getattr(error, "reason", None)
    return isinstance(error, FAILURES) and not (
        _is_refusal(error)
        or isinstance(error, ssl.SSLError)
        or isinstance(reason, urllib3.exceptions.SSLError)
        or str(reason).startswith("SSLError")
    )


def _named(name: str) -> str:
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
    return json.dumps({"predicates": [predicate]})


def _id_by_name(found: list[Any] | None, name: str, key: str) -> str | None:
    return next((_identified(getattr(entry, key)) for entry in found or [] if entry.display_name == name), None)


def _identified(identifier: str | None) -> str:
    """Return an id from the server, or fail if there is none: the SDK takes a login page for an answer."""
    if not identifier:
        raise RefusedError("the answer is not from Kubeflow Pipelines, perhaps a login page; check --host and token")
    return identifier
