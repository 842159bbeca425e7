"""The calls to a registry's server, in an order that can be repeated from the start; needs the extra ``registry``.

The client library's ``register_model`` fails when it is called again for a version that exists, so a retry
neither completes nor checks an earlier attempt. This module uses the calls below it.
"""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from model_registry.core import ModelRegistryAPIClient
from model_registry.types import ArtifactState, ModelArtifact, ModelVersion, RegisteredModel
from mr_openapi import ApiClient, Configuration, ModelRegistryServiceApi, ModelVersionUpdate
from mr_openapi.exceptions import ApiException, ConflictException, NotFoundException
from pydantic import ValidationError

from dkan_core.errors import ConfigError, OutputError, UserError, redact
from dkan_core.integrations.model_registry.entry import Registration, RegistryEntry
from dkan_core.utils.retry import RetryPolicy, call_with_retries

AUTHOR = "dkan"

# API versions under /api/model_registry. The client library knows only the first; older servers have only the second,
# newer ones both.
APIS = ("v1", "v1alpha3")

# Time for a round of calls, and for repeating rounds: a restarted server is back in half a minute.
ROUND_SECONDS = 20.0
ATTEMPTS = RetryPolicy(first_pause=0.5, patience=30.0)

# Places where the library looks for a token, too: a variable with a path, or the path in every pod.
TOKEN_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"
POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")

SOURCE_KIND, SOURCE_CLASS = "kfp", "pipelinerun"
"""The registry's own name for a run of Kubeflow Pipelines, which its pages link to."""


class _PathClient(ApiClient):  # type: ignore[misc] # the library has no types
    """The generated client, under the path of an API's version."""

    def __init__(self, configuration: Configuration, api: str) -> None:
        super().__init__(configuration)
        self._api = api

    def param_serialize(self, method: str, resource_path: str, *args: Any, **options: Any) -> Any:
        path = resource_path.replace(f"/{APIS[0]}/", f"/{self._api}/", 1)
        return super().param_serialize(method, path, *args, **options)


class _Client(ModelRegistryAPIClient):  # type: ignore[misc] # the library has no types
    """The library's client for a version of the API."""

    def __init__(self, configuration: Configuration, api: str) -> None:
        super().__init__(configuration)
        self.api = api

    @asynccontextmanager
    async def get_client(self) -> AsyncIterator[ModelRegistryServiceApi]:
        """Yield the generated calls."""
        client = _PathClient(self.config, self.api)
        try:
            yield ModelRegistryServiceApi(client)
        finally:
            await client.close()


def upsert(server: str, entry: RegistryEntry) -> Registration:
    """Make sure that a registry has exactly one version with these facts.

    Args:
        server: Its address, without a slash at the end.
        entry: The facts.

    Raises:
        ConfigError: The server refuses, or is no Model Registry.
        OutputError: The version exists and is of another model, or the server does not answer.
    """
    configuration = Configuration(host=server, access_token=_token(server))

    def attempt() -> Registration:
        return _result_of(asyncio.wait_for(_upsert(configuration, server, entry), ROUND_SECONDS))

    try:
        return call_with_retries(attempt, ATTEMPTS, _may_pass, name=f"registry {server}")
    except ApiException as error:
        raise _refusal(server, error) from error
    except ssl.SSLError as error:
        raise ConfigError(f"registry {server}: {error}; SSL_CERT_FILE names the certificates to trust") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OutputError(f"registry {server}: does not answer ({error or type(error).__name__})") from error
    except ValidationError as error:
        raise ConfigError(f"registry {server}: does not answer like a Model Registry ({error.title})") from error


def _result_of(request: Coroutine[Any, Any, Registration]) -> Registration:
    """Run a coroutine to its end, even if the caller is inside an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(request)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, request).result()


async def _upsert(configuration: Configuration, server: str, entry: RegistryEntry) -> Registration:
    client = await _connect(configuration, server)
    model = await client.get_registered_model_by_params(entry.name)
    model = model or await client.upsert_registered_model(RegisteredModel(name=entry.name, owner=AUTHOR))
    version = await client.get_model_version_by_params(model.id, entry.version)
    if version is None:
        version = await client.upsert_model_version(_version(entry), model.id)
    artifact = await client.get_model_artifact_by_params(entry.name, version.id)
    _check_same(entry, version, artifact)
    await _add_properties(client, entry, version)
    if artifact is None:
        artifact = await client.upsert_model_version_artifact(_artifact(entry), version.id)
    return Registration(
        registry=redact(server),
        name=entry.name,
        version=entry.version,
        uri=entry.uri,
        model_id=str(model.id),
        version_id=str(version.id),
        artifact_id=str(artifact.id),
    )


async def _add_properties(client: _Client, entry: RegistryEntry, version: ModelVersion) -> None:
    """Add properties that a version lacks, such as metrics of a later test; existing ones stay unchanged."""
    if entry.properties.keys() <= (version.custom_properties or {}).keys():
        return
    async with client.get_client() as calls:
        # Read from the server, because the library's own form drops properties of kinds that it does not know.
        stored = (await calls.get_model_version(version.id)).custom_properties or {}
        known = _version(entry).update().custom_properties
        await calls.update_model_version(version.id, ModelVersionUpdate(customProperties={**known, **stored}))


async def _connect(configuration: Configuration, server: str) -> _Client:
    """Return a client for the first version of the API that the server has."""
    for api in APIS:
        client = _Client(configuration, api)
        try:
            async with client.get_client() as calls:
                await calls.get_registered_models(page_size="1")
            return client
        except NotFoundException:
            continue
    raise ConfigError(f"registry {server}: has no API of a Model Registry ({' or '.join(APIS)}) there")


def _version(entry: RegistryEntry) -> ModelVersion:
    return ModelVersion(
        name=entry.version,
        author=AUTHOR,
        description=entry.description,
        custom_properties={**entry.identity, **entry.properties},
    )


def _artifact(entry: RegistryEntry) -> ModelArtifact:
    source = {}
    if entry.run:
        source = {
            "model_source_kind": SOURCE_KIND,
            "model_source_class": SOURCE_CLASS,
            "model_source_group": entry.run.namespace or _pod_file("namespace"),
            "model_source_id": entry.run.id,
            "model_source_name": entry.run.name or entry.run.id,
        }
    return ModelArtifact(
        name=entry.name,
        uri=entry.uri,
        model_format_name=entry.format_name,
        model_format_version=entry.format_version,
        state=ArtifactState.LIVE,
        **source,
    )


def _check_same(entry: RegistryEntry, version: ModelVersion, artifact: ModelArtifact | None) -> None:
    """Raise OutputError if the version is of another model or location.

    Metrics and texts may differ: people edit them, and metrics depend a little on the processor.
    """
    stored = dict(version.custom_properties or {})
    expected: dict[str, Any] = dict(entry.identity)
    if artifact is not None:
        stored |= {"uri": artifact.uri, "format": (artifact.model_format_name, artifact.model_format_version)}
        expected |= {"uri": entry.uri, "format": (entry.format_name, entry.format_version)}
    for what, value in expected.items():
        if stored.get(what) != value:
            raise OutputError(
                f"{entry.name}: version {entry.version!r} exists and is of another model: {what} is "
                f"{stored.get(what)!r}, here {value!r}; give another version"
            )


def _token(server: str) -> str | None:
    """Return the token for the server; None over plain HTTP, where others could read it on the way."""
    if not server.startswith("https://"):
        return None
    if path := os.environ.get(TOKEN_VARIABLE):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{TOKEN_VARIABLE} {path}: cannot be read ({error.strerror})") from error
    return _pod_file("token")


def _pod_file(name: str) -> str | None:
    """Return the content of a file that Kubernetes puts into every pod, or None outside of a pod."""
    try:
        return (POD_FILES / name).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        # A conflict: another process has created the same; the next round finds it. 429: too many requests.
        return isinstance(error, ConflictException) or error.status == 429 or (error.status or 0) >= 500
    return isinstance(error, aiohttp.ClientError | TimeoutError) and not isinstance(error, ssl.SSLError)


def _refusal(server: str, error: ApiException) -> UserError:
    try:
        said = json.loads(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        said = error.reason
    if _may_pass(error):
        return OutputError(f"registry {server}: does not take the model ({error.status}: {said})")
    hints = {401: "does not know this process; it expects a token", 403: "does not allow this process to register"}
    return ConfigError(f"registry {server}: {hints.get(error.status, 'refuses')} ({error.status}: {said})")
