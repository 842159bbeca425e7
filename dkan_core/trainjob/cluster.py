"""The few calls to a cluster that a run on several nodes needs, with errors that say what to do."""

from collections.abc import Callable, Iterator
from typing import Any

from dkan_core.errors import ClusterUnreachableError
from dkan_core.trainjob.body import GROUP, NODE, PLURAL, VERSION
from dkan_core.utils.extras import require
from dkan_core.utils.kubernetes_api import CALL_SECONDS, Requirements, call_cluster, no_cluster

# Seconds without a line after which the log is requested again, as the connection may be dead.
SILENCE_SECONDS = 300.0

REQUIREMENTS = Requirements(
    kind="TrainJobs",
    controller="Kubeflow Trainer 2.2",
    rules="it needs create, get and delete on trainjobs.trainer.kubeflow.org, list on pods, and get on pods/log "
    "(deploy/trainjobs.yaml is the Role)",
)


def check_sdk() -> None:
    """Raise ConfigError where the Kubeflow SDK is not installed."""
    for package in ("kubeflow", "kubeflow.trainer"):
        require(package, "nodes")


class Cluster:
    """The jobs and pods of a namespace, through the Kubeflow SDK's connection.

    Args:
        namespace: Empty for the one that this process runs in, or that its kubeconfig names.

    Raises:
        ConfigError: The SDK is not installed, or this process knows no cluster.
    """

    def __init__(self, namespace: str) -> None:
        check_sdk()
        from kubeflow.trainer import KubernetesBackendConfig
        from kubeflow.trainer.backends.kubernetes.backend import KubernetesBackend
        from kubernetes.config import ConfigException

        try:
            backend = KubernetesBackend(KubernetesBackendConfig(namespace=namespace or None))
        except ConfigException as error:
            raise no_cluster(error) from error
        self.namespace = backend.namespace.strip()
        self._custom, self._core = backend.custom_api, backend.core_api
        self._resource = (GROUP, VERSION, self.namespace, PLURAL)

    def create(self, body: dict[str, Any]) -> bool:
        """Create a job; return False where there is one of its name.

        Raises:
            ConfigError: The cluster has no TrainJobs, or refuses this one.
        """
        call = self._custom.create_namespaced_custom_object
        what = f"create TrainJob {self.namespace}/{body['metadata']['name']}"
        # Strict, because Trainer 2.1 would silently drop unknown fields, and the job would lack volumes and a deadline.
        options = {"field_validation": "Strict", "_request_timeout": CALL_SECONDS}
        answer = self._call(what, lambda: call(*self._resource, body, **options), {409: False})
        return answer is not False

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a job, or None where there is none."""
        call = self._custom.get_namespaced_custom_object
        what = f"get TrainJob {self.namespace}/{name}"
        job: dict[str, Any] | None = self._call(
            what, lambda: call(*self._resource, name, _request_timeout=CALL_SECONDS), {404: None}
        )
        return job

    def delete(self, name: str) -> None:
        """Delete a job with its pods, if it is there."""
        call = self._custom.delete_namespaced_custom_object
        what = f"delete TrainJob {self.namespace}/{name}"
        self._call(what, lambda: call(*self._resource, name, _request_timeout=CALL_SECONDS), {404: None})

    def pods(self, name: str) -> list[Any]:
        """Return the pods of a job by node, the newest of each."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/replicatedjob-name={NODE}"
        call = self._core.list_namespaced_pod
        found = self._call(
            f"list pods of TrainJob {self.namespace}/{name}",
            lambda: call(self.namespace, label_selector=selector, _request_timeout=CALL_SECONDS),
        )
        # A replaced pod is listed beside its successor until it is removed.
        pods = sorted(found.items, key=lambda pod: str(pod.metadata.creation_timestamp))
        newest = {index_of(pod): pod for pod in pods}
        return [newest[index] for index in sorted(newest)]

    def log(self, pod: str, since_seconds: int | None) -> Iterator[bytes]:
        """Yield pieces of a pod's log as they are written, each line after its time; nothing before the pod starts.

        Raises:
            ClusterUnreachableError: The connection was lost.
        """
        from urllib3.exceptions import HTTPError

        options: dict[str, Any] = {} if since_seconds is None else {"since_seconds": since_seconds}
        response = self._call(
            f"read the log of pod {self.namespace}/{pod}",
            lambda: self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=NODE,
                follow=True,
                timestamps=True,
                _preload_content=False,
                _request_timeout=(CALL_SECONDS[0], SILENCE_SECONDS),
                **options,
            ),
            {400: None, 404: None},
        )
        if response is None:
            return
        try:
            yield from response.stream()
        except HTTPError as error:
            raise ClusterUnreachableError(f"the log of pod {self.namespace}/{pod} broke off: {error}") from error
        finally:
            response.close()

    def _call(self, what: str, call: Callable[[], Any], known: dict[int, Any] | None = None) -> Any:
        """Return the answer of the cluster, or for an error status in ``known`` its value there."""
        return call_cluster(what, call, REQUIREMENTS, known)


def index_of(pod: Any) -> int:
    """Return the index of a pod's node."""
    labels = pod.metadata.labels or {}
    return int(labels.get("batch.kubernetes.io/job-completion-index", 0))
