"""What a run on several nodes is given by the cluster."""

import json
import re
from dataclasses import dataclass
from typing import Any

from dkan_core.errors import ConfigError

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")
RESERVED = "PET_"
"""Variables of torchrun, which Kubeflow Trainer sets."""


@dataclass(frozen=True, kw_only=True)
class NodesConfig:
    """The nodes of a TrainJob; texts that are empty leave the choice to the cluster."""

    image: str
    """Image of the nodes, the same as the launcher's."""

    nodes: int = 2
    """Nodes to train on."""

    gpus_per_node: int = 0
    """GPUs of each node, one worker each; 0 trains on the CPU."""

    gpu_type: str = "nvidia.com/gpu"
    """Resource name of the GPUs on the cluster."""

    workers_per_node: int = 1
    """Training processes of each node when gpus_per_node is 0."""

    cpu_per_node: str = ""
    """CPUs of each node, such as 8; empty asks for none in particular."""

    memory_per_node: str = ""
    """Memory of each node, such as 64Gi; empty asks for none in particular."""

    shm_size: str = ""
    """Size of /dev/shm on each node, such as 8Gi, for NCCL; empty: the cluster's, mostly 64 MB."""

    namespace: str = ""
    """Namespace of the job; empty: the one that the launcher runs in."""

    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of the job, one for torch."""

    timeout_seconds: int = 86_400
    """After so many seconds, waiting for nodes included, the job is deleted and the run has failed."""

    pvc_name: str = ""
    """PersistentVolumeClaim (ReadWriteMany) that nodes and launcher mount; empty: none, all is under URIs."""

    mount_path: str = "/data"
    """Where the PersistentVolumeClaim is mounted, in nodes and launcher alike."""

    secret_name: str = ""
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY for the nodes' environment; empty: none."""

    config_map_name: str = ""
    """ConfigMap with AWS_ENDPOINT_URL and AWS_DEFAULT_REGION; empty: the secret may have them, too."""

    service_account: str = ""
    """Service account of the nodes; empty: the namespace's default one."""

    node_selector: str | dict[str, str] = ""
    """Labels that the nodes must have, a JSON object; empty: none."""

    tolerations: str | list[dict[str, Any]] = ""
    """Tolerations for the nodes' taints, a JSON list; empty: none."""

    env: str = ""
    """JSON object of further variables of the nodes; empty: none."""

    labels: str = ""
    """JSON object of labels of the job, such as a queue's; empty: none."""

    def __post_init__(self) -> None:
        if not self.image:
            raise ConfigError("image: name the image that the nodes run, the same as the launcher's")
        for name, low, high in (
            ("nodes", 1, 1000),
            ("gpus_per_node", 0, 64),
            ("workers_per_node", 1, 256),
            ("timeout_seconds", 1, 1e9),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(f"{name} must be a whole number from {low} to {high:g}, got {value!r}")
        for name in ("cpu_per_node", "memory_per_node", "shm_size"):
            self._check(name, QUANTITY, "a Kubernetes quantity such as 8 or 64Gi")
        for name in ("namespace", "runtime", "pvc_name", "secret_name", "config_map_name", "service_account"):
            self._check(name, NAME, "a name of lower case letters, digits, dots and dashes")
        if not self.mount_path.startswith("/"):
            raise ConfigError(f"mount_path must be an absolute path, got {self.mount_path!r}")
        for name in ("node_selector", "env", "labels"):
            self.mapping(name)
        self.toleration_list  # noqa: B018 - raises when malformed
        if reserved := [name for name in self.mapping("env") if name.startswith(RESERVED)]:
            raise ConfigError(f"env: {reserved[0]} is set by Kubeflow Trainer; leave it out")

    def _check(self, name: str, pattern: re.Pattern[str], wanted: str) -> None:
        value = getattr(self, name)
        if value and not pattern.fullmatch(value):
            raise ConfigError(f"{name} must be {wanted}, got {value!r}")

    @property
    def workers(self) -> int:
        """Training processes in all."""
        return self.nodes * self.workers_on_node

    @property
    def workers_on_node(self) -> int:
        """Training processes of one node."""
        return self.gpus_per_node or self.workers_per_node

    def mapping(self, name: str) -> dict[str, str]:
        """Return a JSON object of texts.

        >>> NodesConfig(image="dkan", node_selector='{"zone": "a"}').mapping("node_selector")
        {'zone': 'a'}
        """
        value = self._json(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ConfigError(
                f'{name} must be a JSON object of texts such as {{"zone": "a"}}, got {getattr(self, name)}'
            )
        return value

    @property
    def toleration_list(self) -> list[dict[str, Any]]:
        """The tolerations."""
        value = self._json("tolerations", [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ConfigError(
                f'tolerations must be a JSON list such as [{{"key": "gpu", "operator": "Exists"}}], '
                f"got {self.tolerations}"
            )
        return value

    def _json(self, name: str, empty: Any) -> Any:
        value = getattr(self, name)
        try:
            return (json.loads(value or "null") if isinstance(value, str) else value) or empty
        except ValueError as error:
            raise ConfigError(f"{name} must be JSON, got {value!r} ({error})") from None
