"""Calls to a Kubernetes API server, with retries where these may help, and errors that say what to do."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dkan_core.errors import ClusterUnreachableError, ConfigError
from dkan_core.utils.retry import RetryPolicy, call_with_retries

# Time-outs in seconds for the connection and for the answer.
CALL_SECONDS = (10.0, 30.0)

RETRIES = RetryPolicy(first_pause=0.5, attempts=5)

OWN_LABELS = {"app.kubernetes.io/managed-by": "dkan"}

# Text in the API server's error for a field that the cluster's schema of a kind lacks.
UNKNOWN_FIELD = "unknown field"


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a cluster must have before it accepts a kind of object."""

    kind: str
    """Name of the objects, in the plural."""

    controller: str
    """What must be installed for them, with its lowest version."""

    rules: str
    """The rights that the service account needs."""

    def explain(self, status: int, said: str) -> str:
        """Return an explanation of a refusal, by its status and message."""
        if UNKNOWN_FIELD in said:
            return f"{self.controller} or later is needed"
        hints = {
            401: "the cluster does not know this service account",
            403: f"the service account may not do that in this namespace; {self.rules}",
            404: f"the cluster has no {self.kind}; install {self.controller} or later",
        }
        return hints.get(status, "the cluster refuses it")


def no_cluster(error: Exception) -> ConfigError:
    """Return the error for a process with neither a pod's connection to a cluster nor a kubeconfig."""
    return ConfigError(f"no cluster is known here: neither a pod's service account nor a kubeconfig ({error})")


def call_cluster(
    what: str,
    call: Callable[[], Any],
    requirements: Requirements,
    known: Mapping[int, Any] | None = None,
) -> Any:
    """Return the answer of the cluster, or for a status in ``known`` its value there; retry temporary failures.

    Args:
        what: What is asked for, for messages: "get TrainJob team/run".
        call: Sends the request.
        requirements: Of the kind of object that is asked for; they explain a refusal.
        known: Statuses that are answers.

    Raises:
        ConfigError: The cluster refuses it.
        ClusterUnreachableError: It does not answer.
    """
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    def attempt() -> Any:
        try:
            return call()
        except ApiException as error:
            if known and error.status in known:
                return known[error.status]
            raise

    def may_pass(error: BaseException) -> bool:
        if isinstance(error, ApiException):
            # 0: no answer. 429: too many requests.
            return error.status in (0, 429) or error.status >= 500
        return isinstance(error, HTTPError)

    try:
        return call_with_retries(attempt, RETRIES, may_pass)
    except (ApiException, HTTPError) as error:
        if isinstance(error, HTTPError) or may_pass(error):
            raise ClusterUnreachableError(f"cannot {what}: the cluster does not answer ({error})") from error
        said = _said(error)
        raise ConfigError(
            f"cannot {what}: {requirements.explain(error.status, said)} ({error.status}: {said})"
        ) from error


def _said(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
