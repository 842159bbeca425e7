"""Settings of a run on several nodes: their number, resources, image and storage."""

import json
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from dkan_core.config.kubernetes import (
    CORES_RULE,
    LABEL_RULE,
    LABELS_RULE,
    MEMORY_RULE,
    NAME_RULE,
    RESOURCE_RULE,
    SHM_RULE,
    TOLERATIONS_RULE,
    VARIABLES_RULE,
    or_empty,
)
from dkan_core.config.schema import STRICT, Expected, Form, named_once, reports_config_errors, setting
from dkan_core.errors import ConfigError

JSON_OBJECT = 'a JSON object of texts such as {"zone": "a"}'
# Variables of torchrun, which Kubeflow Trainer sets.
RESERVED = "PET_"

TEXT_RULES = {
    "gpu_type": RESOURCE_RULE,
    "cpu_per_node": or_empty(CORES_RULE),
    "memory_per_node": or_empty(MEMORY_RULE),
    "shm_size": or_empty(SHM_RULE),
    "namespace": or_empty(LABEL_RULE),
    "runtime": NAME_RULE,
    **dict.fromkeys(("pvc_name", "secret_name", "config_map_name", "service_account"), or_empty(NAME_RULE)),
}
OBJECT_RULES = {"node_selector": LABELS_RULE, "labels": LABELS_RULE, "env": VARIABLES_RULE}


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class NodesConfig:
    """The nodes of a TrainJob; an empty string leaves a choice to the cluster."""

    image: str
    """Image of the nodes, the same as the launcher's."""

    nodes: Annotated[int, Field(ge=1, le=1000)] = 2
    """Nodes to train on."""

    # A form is filled in on a cluster, which is there for its GPUs; a script may also try nodes without any.
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = setting(0, form=Form(default=1))
    """GPUs of each node, one worker each; 0 trains on the CPU."""

    gpu_type: str = "nvidia.com/gpu"
    """Resource name of the GPUs on the cluster."""

    workers_per_node: Annotated[int, Field(ge=1, le=256)] = 1
    """Training processes of each node when gpus_per_node is 0."""

    # In a form as for the training on one node: pods that request nothing are the first to be evicted.
    cpu_per_node: str = setting("", form=Form(default="4"))
    """CPUs of each node, such as 8; empty: none requested."""

    memory_per_node: str = setting("", form=Form(default="16Gi"))
    """Memory limit of each node, with its /dev/shm, such as 64Gi; empty: none requested."""

    # NCCL takes 9 MB for each pair of GPUs that cannot read each other's memory.
    shm_size: str = "2Gi"
    """Size of /dev/shm on each node, such as 8Gi, for NCCL; empty: the cluster's default, usually 64 MB."""

    namespace: str = ""
    """Namespace of the job; empty: the one that the launcher runs in."""

    # The runtime that Kubeflow Trainer installs.
    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of the job, one for torch."""

    timeout_seconds: Annotated[int, Field(ge=1, le=10**9)] = 86_400
    """Seconds after which the job is deleted and the run fails, including the wait for nodes."""

    pvc_name: str = ""
    """PersistentVolumeClaim (ReadWriteMany) that nodes and launcher mount; empty: none, all is under URIs."""

    mount_path: Annotated[str, Field(pattern="^/"), Expected("an absolute path")] = "/data"
    """Where the PersistentVolumeClaim is mounted, on nodes and launcher."""

    secret_name: str = ""
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY for the nodes' environment; empty: none."""

    config_map_name: str = ""
    """ConfigMap with AWS_ENDPOINT_URL and AWS_DEFAULT_REGION; empty: the secret may have them, too."""

    service_account: str = ""
    """Service account of the nodes; empty: the namespace's default one."""

    # The pods may not run as root, whose uid is 0.
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """uid of the nodes, such as the owner of the volume; 0: the image's, or what the cluster chooses."""

    node_selector: Annotated[str | dict[str, str], Expected(JSON_OBJECT)] = ""
    """Labels that the nodes must have, a JSON object; empty: none."""

    tolerations: Annotated[str | list[dict[str, Any]], Expected(TOLERATIONS_RULE.expected)] = ""
    """Tolerations for the nodes' taints, a JSON list; empty: none."""

    env: Annotated[str | dict[str, str], Expected(JSON_OBJECT)] = ""
    """JSON object of further environment variables of the nodes; empty: none."""

    labels: Annotated[str | dict[str, str], Expected(JSON_OBJECT)] = ""
    """JSON object of labels of the job, such as a queue's; empty: none."""

    def __post_init__(self) -> None:
        if not self.image:
            raise ConfigError("image: name the image that the nodes run, the same as the launcher's")
        for name, rule in (TEXT_RULES | OBJECT_RULES).items():
            value = self.mapping(name) if name in OBJECT_RULES else getattr(self, name)
            if not rule.holds(value):
                raise ConfigError(f"{name} must be {rule.expected}, got {value!r}")
        self.toleration_list  # noqa: B018 - raises when malformed
        if reserved := [name for name in self.mapping("env") if name.startswith(RESERVED)]:
            raise ConfigError(f"env: {reserved[0]} is set by Kubeflow Trainer; leave it out")

    @property
    def workers(self) -> int:
        """Training processes in all."""
        return self.nodes * self.workers_on_node

    @property
    def workers_on_node(self) -> int:
        """Training processes of one node."""
        return self.gpus_per_node or self.workers_per_node

    def mapping(self, name: str) -> dict[str, str]:
        """Return a field that holds a JSON object of strings.

        >>> NodesConfig(image="dkan", node_selector='{"zone": "a"}').mapping("node_selector")
        {'zone': 'a'}
        """
        value = self._json(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ConfigError(f"{name} must be {JSON_OBJECT}, got {getattr(self, name)}")
        return value

    @property
    def toleration_list(self) -> list[dict[str, Any]]:
        """The tolerations."""
        value = self._json("tolerations", [])
        if not isinstance(value, list) or not TOLERATIONS_RULE.holds(value):
            raise ConfigError(f"tolerations must be {TOLERATIONS_RULE.expected}, got {self.tolerations}")
        return value

    def _json(self, name: str, empty: Any) -> Any:
        value = getattr(self, name)
        try:
            found = json.loads(value or "null", object_pairs_hook=named_once) if isinstance(value, str) else value
            return empty if found is None else found
        except RecursionError:
            raise ConfigError(f"{name} must be JSON, got text that is nested too deeply to be read") from None
        except ValueError as error:
            raise ConfigError(f"{name} must be JSON, got {value!r} ({error})") from None
