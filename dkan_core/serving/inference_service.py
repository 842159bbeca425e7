"""Applies a model as an InferenceService of KServe to the cluster, and waits until it is ready."""

import hashlib
import logging
import re
import time
from pathlib import Path
from typing import Any

from dkan_core.errors import ClusterUnreachableError, ConfigError, DeploymentError
from dkan_core.model.model_folder import CARD, ModelFolder
from dkan_core.utils.extras import require
from dkan_core.utils.file_names import CONFIG
from dkan_core.utils.kubernetes_api import CALL_SECONDS, OWN_LABELS, Requirements, call_cluster, no_cluster

GROUP, VERSION, PLURAL, KIND = "serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService"
# The format's name in deploy/serving/serving-runtime.yaml.
MODEL_FORMAT = "dkan"
# Annotation of the pods, so that another model at the same URI becomes a new revision.
MODEL_HASH = "dkan/model-sha256"
# With a manager of its own, server-side apply leaves fields of others, such as an autoscaler's, alone.
FIELD_MANAGER = "dkan"
POLL_SECONDS = 2.0
# A service's name is part of a DNS label of at most 63 characters, to which KServe adds "-predictor" and the namespace.
NAME = re.compile("[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# Schemes of KServe's storage initializer; Kubeflow's own store uses the S3 protocol.
SCHEMES = ("s3", "gs", "pvc", "https", "http", "hdfs", "webhdfs", "hf", "oci")
SAME_SCHEMES = {"minio": "s3", "gcs": "gs"}

REQUIREMENTS = Requirements(
    kind="InferenceServices",
    controller="KServe 0.13",
    rules="it needs create, get and patch on inferenceservices.serving.kserve.io (deploy/inferenceservices.yaml is the "
    "Role)",
)

logger = logging.getLogger(__name__)


def deploy(
    model: str | Path,
    name: str,
    uri: str,
    *,
    namespace: str = "",
    runtime: str = "dkan",
    service_account: str = "",
    timeout_seconds: int = 900,
) -> str:
    """Serve a published model on the Kubernetes cluster of this process, which has KServe; wait until it is served.

    An existing InferenceService of that name is switched to this model, by KServe without downtime. A retry changes
    nothing and waits again.

    Args:
        model: A local copy of the model, which shows whether another one is being served.
        name: Name of the InferenceService.
        uri: Where KServe finds the model: s3://, gs:// or pvc://CLAIM/FOLDER.
        namespace: Empty for the one that this process runs in, or that its kubeconfig names.
        runtime: ServingRuntime or ClusterServingRuntime of dkan.
        service_account: Service account of the server's pods, with the rights to read the model. Empty: the
            namespace's default.
        timeout_seconds: How long to wait.

    Returns:
        Its URL.

    Raises:
        ConfigError: A setting is wrong, or this process has no cluster or no permission to do that in it.
        DataError: There is no model.
        ClusterUnreachableError: The cluster does not answer.
        DeploymentError: The model is not served in time; the message quotes KServe.
    """
    body = inference_service(name, storage_uri(uri), _digest(model), runtime=runtime, service_account=service_account)
    services = _Services(namespace)
    generation = services.apply(body)["metadata"].get("generation", 0)
    logger.info("waiting for InferenceService %s/%s to become ready", services.namespace, name)
    url = _wait(services, name, generation, timeout_seconds)
    logger.info("InferenceService %s/%s is ready at %s", services.namespace, name, url)
    return url


def inference_service(
    name: str, storage_uri: str, digest: str, *, runtime: str = "dkan", service_account: str = ""
) -> dict[str, Any]:
    """Return the InferenceService.

    Args:
        name: Its name.
        storage_uri: Where KServe finds the model.
        digest: Identifies the model.
        runtime: ServingRuntime or ClusterServingRuntime.
        service_account: Of the pods; empty: the namespace's default.

    Raises:
        ConfigError: The name is none.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"inference_service must be at most 40 lowercase letters, digits and dashes, a letter first, got {name!r}"
        )
    predictor: dict[str, Any] = {
        "annotations": {MODEL_HASH: digest},
        "model": {
            "modelFormat": {"name": MODEL_FORMAT},
            "protocolVersion": "v2",
            "runtime": runtime,
            "storageUri": storage_uri,
        },
    }
    if service_account:
        predictor["serviceAccountName"] = service_account
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "labels": OWN_LABELS},
        "spec": {"predictor": predictor},
    }


def storage_uri(uri: str) -> str:
    """Return the URI of a model as KServe knows it.

    Raises:
        ConfigError: KServe cannot read it.
    """
    scheme, separator, rest = uri.partition("://")
    scheme = SAME_SCHEMES.get(scheme, scheme)
    if not separator or scheme not in SCHEMES:
        raise ConfigError(
            f"model {uri}: KServe cannot read it; publish the model to a bucket, such as s3://bucket/models/late, or "
            "name the folder on a claim as pvc://CLAIM/FOLDER (serving_uri in Kubeflow)"
        )
    return f"{scheme}://{rest}"


def _digest(model: str | Path) -> str:
    """Return a digest of a model, independent of its card."""
    folder = ModelFolder(Path(model))
    folder.read(CONFIG)
    digest = hashlib.sha256()
    for name in sorted(folder.files):
        if name != CARD:
            digest.update(hashlib.sha256(folder.files[name]).digest())
    return digest.hexdigest()


def _wait(services: "_Services", name: str, generation: int, timeout_seconds: int) -> str:
    deadline = time.monotonic() + timeout_seconds
    found: dict[str, Any] = {}
    while True:
        try:
            found = services.get(name)
        except ClusterUnreachableError as error:
            logger.warning("%s", error)
        if url := ready_url(found, generation):
            return url
        if time.monotonic() >= deadline:
            raise DeploymentError(
                f"InferenceService {services.namespace}/{name} is not ready after {timeout_seconds} seconds: "
                f"{_why(found) or 'KServe reports no reason'}"
            )
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))


def ready_url(service: dict[str, Any], generation: int) -> str | None:
    """Return the URL of an InferenceService that serves what was asked for, or None.

    Args:
        service: As the cluster has it.
        generation: Number of what was asked for.

    Raises:
        DeploymentError: It cannot become ready.
    """
    status = service.get("status") or {}
    # The status is of an earlier generation and says nothing about the new model.
    if (status.get("observedGeneration") or 0) < generation:
        return None
    model = status.get("modelStatus") or {}
    if model.get("transitionStatus") == "InvalidSpec":
        raise DeploymentError(f"InferenceService {service['metadata']['name']} cannot be served: {_why(service)}")
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or ())
    if not ready or model.get("transitionStatus", "UpToDate") != "UpToDate":
        return None
    return status.get("url") or (status.get("address") or {}).get("url")


def _why(service: dict[str, Any]) -> str:
    """Return KServe's reason why a service is not ready."""
    status = service.get("status") or {}
    reasons = [
        f"{each.get('type')}: {each.get('reason', '')} {each.get('message', '')}".strip()
        for each in status.get("conditions") or ()
        if each.get("status") != "True"
    ]
    failure = (status.get("modelStatus") or {}).get("lastFailureInfo") or {}
    if failure:
        reasons.insert(0, f"{failure.get('reason', '')} {failure.get('message', '')}".strip())
    return "; ".join(reasons)


class _Services:
    """The InferenceServices of a namespace.

    Args:
        namespace: Empty for the one that this process runs in, or that its kubeconfig names.

    Raises:
        ConfigError: The client is not installed, or this process knows no cluster.
    """

    def __init__(self, namespace: str) -> None:
        require("kubernetes", "serve")
        from kubernetes import client

        found = _load_configuration()
        self.namespace = namespace or found
        self._api = client.ApiClient()

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create or change a service, by server-side apply; return it."""
        name = body["metadata"]["name"]
        # Strict, because a KServe that does not know a field would drop it silently.
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        return self._call("apply", "PATCH", name, query, {"Content-Type": "application/apply-patch+yaml"}, body)

    def get(self, name: str) -> dict[str, Any]:
        """Return a service."""
        return self._call("get", "GET", name, {}, {}, None)

    def _call(
        self, verb: str, method: str, name: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> dict[str, Any]:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{name}"

        def call() -> Any:
            return self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", **headers},
                body=body,
                response_type="object",
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=CALL_SECONDS,
            )

        found: dict[str, Any] = call_cluster(f"{verb} InferenceService {self.namespace}/{name}", call, REQUIREMENTS)
        return found


def _load_configuration() -> str:
    """Load the connection of this pod or of the kubeconfig; return its namespace."""
    from kubernetes import config

    try:
        config.load_incluster_config()
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text(encoding="utf-8").strip()
    except config.ConfigException:
        pass
    try:
        config.load_kube_config()
        return str(config.list_kube_config_contexts()[1]["context"].get("namespace") or "default")
    except config.ConfigException as error:
        raise no_cluster(error) from error
